// Command etcd is the store the real broker keeps its specs in. Its module has no main package that
// builds outside its own repository.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }

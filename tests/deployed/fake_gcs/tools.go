//go:build tools

// Package tools names the program that is built here: a server that speaks Google Cloud Storage's API.
package tools

import _ "github.com/fsouza/fake-gcs-server"

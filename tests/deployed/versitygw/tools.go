//go:build tools

// Package tools names the program that is built here: an S3 server over a directory.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"

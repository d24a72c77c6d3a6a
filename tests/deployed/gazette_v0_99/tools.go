//go:build tools

// Package gazette pins the last broker whose List answers once, for the tests of clients that expect a stream.
package gazette

import (
	_ "go.gazette.dev/core/cmd/gazette"
)

//go:build tools

// Package gazette pins the broker and its command line tool for the conformance tests.
package gazette

import (
	_ "go.gazette.dev/core/cmd/gazctl"
	_ "go.gazette.dev/core/cmd/gazette"
)

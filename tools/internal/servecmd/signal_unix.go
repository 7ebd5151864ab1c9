//go:build !windows

package servecmd

import (
	"os"
	"syscall"
)

// reloadSignals ask a server to read its configuration again.
var reloadSignals = []os.Signal{syscall.SIGHUP}

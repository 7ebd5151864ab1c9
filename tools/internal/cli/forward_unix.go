//go:build unix

package cli

import (
	"os"
	"syscall"
)

// replaceProcess makes this process one of the program at path. It returns only where that fails.
func replaceProcess(path string, args []string) error {
	return syscall.Exec(path, append([]string{path}, args...), os.Environ())
}

func interrupt(p *os.Process) error { return p.Signal(os.Interrupt) }

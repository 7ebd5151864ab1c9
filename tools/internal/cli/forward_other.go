//go:build !unix

package cli

import (
	"errors"
	"os"
)

// replaceProcess is more than this system can do.
func replaceProcess(string, []string) error { return errors.ErrUnsupported }

func interrupt(p *os.Process) error { return p.Kill() }

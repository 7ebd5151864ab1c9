//go:build !linux

package self

import (
	"os/exec"
	"syscall"
)

// EndWithParent cannot be had on this system.
func EndWithParent() *syscall.SysProcAttr { return nil }

// asGroup cannot be had on this system.
func asGroup(*exec.Cmd) {}

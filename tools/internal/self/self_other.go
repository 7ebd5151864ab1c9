//go:build !linux

package self

import "syscall"

// EndWithParent cannot be had on this system.
func EndWithParent() *syscall.SysProcAttr { return nil }

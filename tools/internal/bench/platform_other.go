//go:build !linux

package bench

import "syscall"

const directFlag = 0 // through the page cache

func wantHuge([]byte) {}

func endWithParent() *syscall.SysProcAttr { return nil }

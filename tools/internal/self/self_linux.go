package self

import "syscall"

// EndWithParent makes a child process end when this one does, however that happens.
func EndWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

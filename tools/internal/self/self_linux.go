package self

import (
	"os/exec"
	"syscall"
)

// EndWithParent makes a child process end when this one does, however that happens.
func EndWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// asGroup has a program lead a group of processes, which is killed as one.
func asGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = EndWithParent()
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

//go:build unix

package dirlock

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/skepkv/skep"
)

// tryLock takes an exclusive lock on f; false when another process has it.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// unlock gives up the lock on f, for whoever else has the file open by way of this process.
func unlock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// isAlive says whether a process is there.
func isAlive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// Owned refuses root in a directory that is another user's, as Denied.
func Owned(dir string) error { return owned(dir, os.Geteuid()) }

func owned(dir string, euid int) error {
	st, err := os.Stat(dir)
	if err != nil {
		return nil // Take says it
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || euid != 0 || sys.Uid == 0 {
		return nil
	}
	return &skep.Error{Op: "lock", Kind: skep.Denied, Field: "user", Value: "root",
		Limit: fmt.Sprintf("number %d, whose directory %s is (sudo -u '#%d' ...): it could not open what root makes there",
			sys.Uid, dir, sys.Uid)}
}

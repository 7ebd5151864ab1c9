package command_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
)

// What the operating system refused has its own way out, whatever was being done.
func TestNextStepOfSystemErrors(t *testing.T) {
	t.Parallel()
	readOnly := &skep.Error{Op: "open device", Kind: skep.DeviceFailed,
		Err: &os.PathError{Op: "open", Path: "/dev/nvme3n1", Err: syscall.EROFS}}
	assert.Contains(t, command.NextStep(readOnly), "blockdev --setrw /dev/nvme3n1")
	for errno, says := range map[syscall.Errno]string{
		syscall.EFBIG: "ulimit -f", syscall.ENOSPC: "free space", syscall.EDQUOT: "quota", syscall.EMFILE: "LimitNOFILE",
		syscall.EADDRINUSE: "another process", syscall.EADDRNOTAVAIL: "no such address",
		syscall.ENFILE: "fs.file-max", syscall.EROFS: "read-only", syscall.EIO: "kernel log",
		syscall.ENOTDIR: "name a directory",
	} {
		assert.Contains(t, command.NextStep(&skep.Error{Op: "remove device", Kind: skep.NotFound, Err: errors.New("it is 9")}), "skep device list")
		for _, kind := range []skep.Kind{skep.Failed, skep.DeviceFailed, skep.Other} {
			err := &skep.Error{Op: "open device", Kind: kind, Err: errors.Join(&os.PathError{Op: "fallocate", Path: "x", Err: errno})}
			assert.Contains(t, command.NextStep(err), says, "%v, %v", errno, kind)
		}
	}
}

// A copy of a store that names the original's devices takes them: the next step is not about sizes of blocks.
func TestTheNextStepForADeviceThatACopyHas(t *testing.T) {
	t.Parallel()
	taken := &skep.Error{Op: "open device", Kind: skep.Conflict, Field: "/drives/a", Value: "taken by a copy"}
	next := command.NextStep(taken)
	assert.Contains(t, next, "copies of its devices")
	assert.Contains(t, command.NextStep(&skep.Error{Op: "open namespace", Kind: skep.Conflict}), "block size")
}

// Devices that are not to be the store's lie among those that are: no other directory and no size of blocks helps.
func TestTheNextStepForDevicesThatGaveEachOtherUp(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"devices that the others went on without", "device 3"} {
		next := command.NextStep(&skep.Error{Op: "rebuild", Kind: skep.Conflict, Field: field})
		assert.Contains(t, next, "out of its directory", field)
		assert.NotContains(t, next, "block size", field)
	}
}

// A server is told by its settings, and not only by flags.
func TestTheNextStepForACapNamesTheSetting(t *testing.T) {
	t.Parallel()
	next := command.NextStep(skep.Invalidf("open store", "capacity bytes", 8<<30, "4294967296, as the store has it"))
	assert.Contains(t, next, "store.change_capacity")
	assert.Contains(t, next, "--change-capacity")
}

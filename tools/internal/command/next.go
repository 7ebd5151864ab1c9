package command

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/skepkv/skep"
)

// systemSteps is what to do about what the operating system refused: it knows the cause where a kind only
// knows what failed by it.
var systemSteps = []struct {
	errno syscall.Errno
	next  string
}{
	{syscall.EFBIG, "raise the limit of a file's size (ulimit -f; LimitFSIZE= of a systemd unit), or give smaller devices: the file system may have a limit too"},
	{syscall.ENOSPC, "free space on the file system, or give a cap (--capacity) or a device's size (--size) that fits"},
	{syscall.EDQUOT, "free space, or have the quota on the file system raised (quota shows it)"},
	{syscall.EMFILE, "raise the limit of open files (ulimit -n; LimitNOFILE= of a systemd unit), or lower limits.connections"},
	{syscall.ENFILE, "the whole system is out of open files: end programs, or raise fs.file-max"},
	{syscall.EADDRINUSE, "another process listens there (ss -tlnp names it): end it, or give another port"},
	{syscall.EADDRNOTAVAIL, "this machine has no such address (ip addr names its own): give one it has, or 0.0.0.0 for all"},
	{syscall.ENOTDIR, "a part of the path is a file and no directory: name a directory (--dir)"},
	{syscall.EROFS, "the file system is read-only: mount it for writing; the kernel log says whether an error made it so"},
}

// takenBy are the commands that take --device and --catalog-dir: what another one says of them is for these.
const takenBy = " of skep serve, scrub, verify and rebuild"

// NextStep is what a user can do about err; "" when only they can know.
func NextStep(err error) string {
	var h *hint
	var u *usageError
	switch {
	case errors.As(err, &h):
		return h.next
	case errors.As(err, &u):
		return u.next
	case errors.Is(err, context.Canceled):
		return "" // whoever interrupted it knows
	}
	var e *skep.Error
	if errors.As(err, &e) && e.Op == "open catalog" && e.Kind == skep.Full {
		return "free some space on that file system, then open again: nothing is lost, and nothing of the store has to go"
	}
	if errors.As(err, &e) && e.Kind == skep.NotFound && (e.Field == "device" || strings.HasSuffix(e.Op, " device")) {
		return "skep device list --dir D says which devices the store has: a number, path, serial number or id of one"
	}
	if e != nil && e.Op == "open store" && e.Field == "devices" {
		return "devices in the settings (--device, SKEP_DEVICES) is not what the store has now: leave it out, or name " +
			"those that the message names. A drive that is none of the store's is not opened"
	}
	if e != nil && e.Op == "open store" && e.Field == "capacity bytes" && e.Kind == skep.Invalid {
		return "store.change_capacity: true in the settings (--change-capacity) makes it the cap from now on; or leave " +
			"store.capacity_bytes (--capacity) out"
	}
	if e != nil && e.Field == "catalog directory" {
		return "leave --catalog-dir out, or name the directory of this store's catalog"
	}
	if e != nil && e.Kind == skep.Conflict && e.Op == "add device" {
		return "skep device list --dir D says which devices the store has"
	}
	if e != nil && e.Kind == skep.Conflict && e.Op == "open device" {
		return "name devices that are this directory's own, each once (--device" + takenBy + ", devices in the settings): " +
			"a copy of a store needs copies of its devices"
	}
	path := (*fs.PathError)(nil)
	if errors.As(err, &path) && errors.Is(path.Err, syscall.EROFS) && strings.HasPrefix(path.Path, "/dev/") {
		return "the block device is read-only (lsblk -o NAME,RO shows it; the kernel log says whether an error made " +
			"it so): blockdev --setrw " + path.Path
	}
	for _, s := range systemSteps {
		if errors.Is(err, s.errno) {
			return s.next
		}
	}
	if path := (*fs.PathError)(nil); errors.As(err, &path) && errors.Is(path, fs.ErrPermission) {
		return "check who owns " + path.Path + " and who may write to it (ls -l, lsattr), or run as that user; a device is written to, whatever is done with the store"
	}
	if e != nil && e.Op == "find catalog" {
		return "name the catalog's directory (--catalog-dir" + takenBy + "): where it is lost, skep rebuild makes one anew " +
			"from the devices"
	}
	switch skep.KindOf(err) {
	case skep.Invalid:
		return "give a value inside the limit; --help shows the defaults"
	case skep.Locked:
		return "end the process that has the store open, or look at it with skep inspect, which needs no lock"
	case skep.Foreign:
		return "choose another --dir, or remove what is in the way if nothing on it is needed"
	case skep.Missing:
		return "bring the device or file back to its place, or name where it is (--device" + takenBy + "); " +
			"skep device list --dir D says what the store expects. " +
			"Without it: skep device replace OLD NEW where blocks have other copies, skep rebuild --without-missing where nothing else helps"
	case skep.NotFound:
		return "check --dir: a store has a catalog/ in it; skep serve --dir D makes one"
	case skep.Version:
		return "use the skep that wrote it, or make the store anew: remove its directory, and wipe its block devices"
	case skep.Damaged:
		return "keep the directory as it is; skep verify --dir D names each fault with what to do, skep rebuild --dry-run what can be had from the devices"
	case skep.Full:
		return "free space on the file system, or give the store a cap that fits (--capacity)"
	case skep.NoMemory:
		return "close other programs or give smaller blocks; skep doctor shows the limits"
	case skep.Conflict:
		return "use another --dir, or the block size the store was made with"
	case skep.Deadline:
		return "try again when the machine has less to do; skep doctor --dir D says whether the drive answers"
	case skep.Failed, skep.DeviceFailed:
		return "see the kernel log for the drive's errors, then skep doctor --dir D"
	}
	if errors.Is(err, syscall.EIO) {
		return "see the kernel log for the drive's errors, then skep doctor --dir D"
	}
	if errors.Is(err, os.ErrNotExist) {
		return "check the path"
	}
	if errors.Is(err, os.ErrPermission) {
		return "check who owns the path, or run as that user"
	}
	return ""
}

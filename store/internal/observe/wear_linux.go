package observe

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adminCommand is struct nvme_admin_cmd of linux/nvme_ioctl.h.
type adminCommand struct {
	opcode, flags                uint8
	_                            uint16
	nsid                         uint32
	cdw2, cdw3                   uint32
	metadata, addr               uint64
	metadataLen, dataLen         uint32
	cdw10, cdw11, cdw12          uint32
	cdw13, cdw14, cdw15, timeout uint32
	result                       uint32
}

var _ [0]struct{} = [72 - unsafe.Sizeof(adminCommand{})]struct{}{}

const (
	adminIoctl = 0xc0484e41 // _IOWR('N', 0x41, struct nvme_admin_cmd)
	getLogPage = 0x02
	smartLogID = 0x02
)

var nvmeName = regexp.MustCompile(`^(nvme\d+)(c\d+)?n\d+`)

// smartLog asks the NVMe drive that path is, or whose file system path lies on, for its
// health log. It needs the right to open the drive's controller.
func smartLog(path string) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	}
	dev := st.Dev
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		dev = st.Rdev
	}
	// A partition's directory lies in its drive's, so the drive's name is on the way.
	sys, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(uint64(dev)), unix.Minor(uint64(dev))))
	if err != nil {
		return nil, errNoSmart
	}
	var controller string
	for p := sys; len(p) > 1 && controller == ""; p = filepath.Dir(p) {
		if m := nvmeName.FindStringSubmatch(filepath.Base(p)); m != nil {
			controller = m[1]
		}
	}
	if controller == "" {
		return nil, errNoSmart
	}
	f, err := os.Open("/dev/" + controller)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	page := make([]byte, smartPage)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&page[0])
	c := adminCommand{opcode: getLogPage, nsid: 0xffffffff, addr: uint64(uintptr(unsafe.Pointer(&page[0]))), dataLen: smartPage,
		cdw10: (smartPage/4-1)<<16 | smartLogID, timeout: 2000}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), adminIoctl, uintptr(unsafe.Pointer(&c))); errno != 0 {
		return nil, fmt.Errorf("health log of %s: %w", controller, errno)
	}
	return page, nil
}

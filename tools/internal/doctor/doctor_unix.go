//go:build unix

package doctor

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

func (r *Report) kernel() {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		r.add("kernel", Warn, err.Error(), "")
		return
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	s, next := OK, ""
	if major < 5 || major == 5 && minor < 15 {
		s, next = Warn, "io_uring is good from Linux 5.15 on; older kernels use the slower thread pool"
	}
	r.add("kernel", s, fmt.Sprintf("%s %s on %s, %d CPUs", runtime.GOOS, release, runtime.GOARCH, runtime.NumCPU()), next)
}

func (r *Report) memlock() {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		r.add("locked memory", Warn, err.Error(), "")
		return
	}
	limit := "unlimited"
	if l.Cur != unix.RLIM_INFINITY {
		limit = fmt.Sprintf("%d MiB", l.Cur>>20)
	}
	switch {
	case os.Geteuid() == 0:
		r.add("locked memory", OK, "limit "+limit+", which does not bind root", "")
	case l.Cur < 1<<30:
		r.add("locked memory", Warn, "RLIMIT_MEMLOCK is "+limit+": buffers are not registered with io_uring, reads cost more CPU", "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the service")
	default:
		r.add("locked memory", OK, "limit "+limit, "")
	}
}

func (r *Report) space() {
	var s unix.Statfs_t
	if err := unix.Statfs(r.Dir, &s); err != nil {
		r.add("free space", Warn, err.Error(), "")
		return
	}
	r.FreeBytes = int64(s.Bavail) * int64(s.Bsize)
	total := int64(s.Blocks) * int64(s.Bsize)
	detail := fmt.Sprintf("%.1f GB of %.1f GB", float64(r.FreeBytes)/1e9, float64(total)/1e9)
	switch {
	case r.FreeBytes < 1<<30:
		r.add("free space", Fail, detail, "a store keeps 1 GiB free: make room, or use another --dir")
	case r.FreeBytes < 10<<30:
		r.add("free space", Warn, detail, "room for little: a 512-token block of an 8B model is 64 MiB")
	default:
		r.add("free space", OK, detail, "")
	}
}

// Package doctor looks at a machine and says what skep will find there: what works,
// what will be slower than it could be and why, and what to do about it. It changes
// nothing but a small file that it makes in the directory in question and removes.
package doctor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
)

// Status of a check.
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warn" // works, but not as well as it could
	Fail Status = "fail" // does not work
)

// Check is one line of the report.
type Check struct {
	Name   string `json:"name"`   // what was looked at
	Status Status `json:"status"` // ok; warn: works, not as well as it could; fail: does not work
	Detail string `json:"detail"` // what was found
	Next   string `json:"next"`   // what to do; empty when ok
}

// Report is what the doctor found.
type Report struct {
	Dir           string  `json:"dir"`            // as given
	Status        Status  `json:"status"`         // ok, warn or fail: the worst of the checks
	Checks        []Check `json:"checks"`         // what was looked at
	Backend       string  `json:"backend"`        // what would move the bytes of devices there
	BackendReason string  `json:"backend_reason"` // why not a better one
	Simulated     bool    `json:"simulated"`      // a device is a simulation
	ChecksumGBps  float64 `json:"checksum_gbps"`  // xxh3-64 on one core, the best of several (GB/s)
	FreeBytes     int64   `json:"free_bytes"`     // free in the file system, for this user (bytes)
}

// Examine checks the machine and dir, which must exist.
func Examine(dir string) (*Report, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return nil, &skep.Error{Op: "doctor", Kind: skep.NotFound, Field: "--dir", Value: dir, Limit: "an existing directory", Err: err}
	}
	if !st.IsDir() {
		return nil, skep.Invalidf("doctor", "--dir", dir, "a directory")
	}
	r := &Report{Dir: dir, Status: OK, Checks: []Check{}}
	r.kernel()
	r.devices()
	r.memory(memory.Limit())
	r.memlock()
	r.hugePages()
	r.space()
	r.cpu()
	r.clock()
	r.fio()
	for _, c := range r.Checks {
		if c.Status == Fail || c.Status == Warn && r.Status == OK {
			r.Status = c.Status
		}
	}
	return r, nil
}

func (r *Report) add(name string, s Status, detail, next string) {
	if s == OK {
		next = ""
	}
	r.Checks = append(r.Checks, Check{name, s, detail, next})
}

// devices tries the backends on a file in the directory.
func (r *Report) devices() {
	path := filepath.Join(r.Dir, fmt.Sprintf(".skep-doctor-%d", os.Getpid()))
	d, err := device.Create(path, 1<<20, device.Options{})
	if err != nil {
		r.add("file devices", Fail, err.Error(), "choose a directory on a local file system that preallocates (ext4, xfs) and that you may write to")
		return
	}
	defer os.Remove(path)
	info := d.Info()
	r.Backend, r.BackendReason, r.Simulated = info.Backend, info.Reason, info.Simulated
	if err := d.Close(); err != nil {
		r.add("file devices", Fail, err.Error(), "see the kernel log")
		return
	}
	r.add("file devices", OK, "made, preallocated, locked and removed a file of 1 MiB", "")
	if BuiltWithIOUring {
		r.add("build", OK, "with the tag iouring", "")
	} else {
		r.add("build", Warn, "without the tag iouring: small reads cost about twice the CPU", "build with: go build -tags iouring -ldflags=-checklinkname=0 ./tools/skep")
	}
	u, err := device.Open(path, device.Options{Backend: device.IOUring})
	switch {
	case err == nil:
		r.add("io_uring", OK, "the kernel permits it", "")
		u.Close()
	case BuiltWithIOUring:
		next := "allow the io_uring system calls: seccomp profile of the container, kernel.io_uring_disabled=0"
		r.add("io_uring", Warn, err.Error()+"; the thread pool is used", next)
	default:
		r.add("io_uring", Warn, err.Error(), "see build")
	}
	if info.Direct {
		r.add("O_DIRECT", OK, "the file system takes it", "")
	} else {
		r.add("O_DIRECT", Warn, "refused by the file system: data goes through the page cache, which costs a copy", "put --dir on ext4, xfs or a raw block device")
	}
}

// smallMemory is below what a server with its default sizes fits into with ease.
const smallMemory = 2 << 30

// memory says how much of it a process may take here; limit 0: as much as there is.
func (r *Report) memory(limit int64) {
	const check = "memory limit"
	text := fmt.Sprintf("a control group limits this process to %d MiB", limit>>20)
	switch {
	case limit == 0:
		r.add(check, OK, "no control group limits this process", "")
	case limit < smallMemory:
		r.add(check, Warn, text+": the DRAM tier, I/O buffers and calls get less than their defaults",
			"give the container, or the service, 2 GiB or more and 64 bytes for each block")
	default:
		r.add(check, OK, text, "")
	}
}

func (r *Report) hugePages() {
	const path = "/sys/kernel/mm/transparent_hugepage/enabled"
	b, err := os.ReadFile(path)
	if err != nil {
		r.add("huge pages", Warn, err.Error(), "large reads into small pages run at about a third of the speed; enable transparent huge pages")
		return
	}
	mode := strings.TrimSpace(string(b))
	if strings.Contains(mode, "[never]") {
		r.add("huge pages", Warn, mode+": large reads into small pages run at about a third of the speed", "echo madvise | sudo tee "+path)
		return
	}
	r.add("huge pages", OK, "transparent: "+mode, "")
}

func (r *Report) cpu() {
	var have []string
	for _, f := range []cpuid.FeatureID{cpuid.AVX2, cpuid.AVX512F, cpuid.SHA, cpuid.ASIMD} {
		if cpuid.CPU.Has(f) {
			have = append(have, f.String())
		}
	}
	buf := make([]byte, 4<<20)
	for i := range buf {
		buf[i] = byte(i)
	}
	var n int64
	best := 0.0
	var sum uint64
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); n++ {
		start := time.Now()
		sum ^= xxh3.Hash(buf)
		best = max(best, float64(len(buf))/1e9/time.Since(start).Seconds())
	}
	runtime.KeepAlive(sum)
	r.ChecksumGBps = best
	detail := fmt.Sprintf("%s, %s; checksums at %.1f GB/s on one core", cpuid.CPU.BrandName, strings.Join(have, " "), best)
	if best < 5 {
		r.add("CPU", Warn, detail, "checking what several drives deliver needs more cores, or a CPU with AVX2")
		return
	}
	r.add("CPU", OK, detail, "")
}

func (r *Report) clock() {
	source := "unknown"
	if b, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource"); err == nil {
		source = strings.TrimSpace(string(b))
	}
	const n = 10000
	start := time.Now()
	for range n {
		_ = time.Now()
	}
	each := time.Since(start) / n
	if each > 500*time.Nanosecond {
		r.add("clock", Warn, fmt.Sprintf("%s, %v a reading", source, each), "a clock that needs a system call slows every operation; tsc or kvm-clock is better")
		return
	}
	r.add("clock", OK, fmt.Sprintf("%s, %v a reading", source, each), "")
}

func (r *Report) fio() {
	if path, err := exec.LookPath("fio"); err == nil {
		r.add("fio", OK, path, "")
	} else if errors.Is(err, exec.ErrNotFound) {
		r.add("fio", Warn, "not installed: skep bench compares with raw I/O of its own instead", "apt install fio, or your system's way")
	} else {
		r.add("fio", Warn, err.Error(), "")
	}
}

// Backend says what would drive file devices in dir, and why not something better.
func Backend(dir string) (name, reason string) {
	path := filepath.Join(dir, fmt.Sprintf(".skep-probe-%d", os.Getpid()))
	d, err := device.Create(path, device.Align, device.Options{})
	if err != nil {
		return "none", err.Error()
	}
	defer os.Remove(path)
	defer d.Close()
	info := d.Info()
	return info.Backend, info.Reason
}

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/skepkv/skep/tools/internal/self"
)

// load is I/O for the limit to do: one job on each file, all at once.
type load struct {
	Files   []string
	RW      string  // fio's words: read, write, randread
	Size    int64   // bytes at a time
	Depth   int     // at once, on each file
	Bytes   int64   // on each file; 0 with Seconds
	Seconds float64 // 0 with Bytes
	Span    int64   // bytes of each file that are used; 0: Bytes
}

// limiter does a load as fast as the machine allows.
type limiter interface {
	// Name says who does it and with what buffers.
	Name() string
	run(ctx context.Context, l load) (Sample, error)
}

// newLimiter finds fio, or does without.
func newLimiter(dir string) limiter {
	path, err := exec.LookPath("fio")
	if err != nil {
		return rawLimit{"raw O_DIRECT preads and pwrites from goroutines, huge-page buffers (fio is not installed)"}
	}
	f := &fio{path: path, dir: dir}
	if out, err := exec.Command(path, "--version").Output(); err == nil {
		f.version = strings.TrimSpace(string(out))
	}
	// Probed once: containers often forbid io_uring.
	probe := filepath.Join(dir, "fio-probe")
	defer os.Remove(probe)
	for _, engine := range []string{"io_uring", "libaio", "psync"} {
		f.engine = engine
		_, err = f.run(context.Background(), load{Files: []string{probe}, RW: "write", Size: 4096, Depth: 1, Bytes: 4096})
		if err == nil {
			return f
		}
	}
	return rawLimit{"raw O_DIRECT preads and pwrites from goroutines, huge-page buffers (fio does not run here: " + firstLine(err.Error()) + ")"}
}

func firstLine(s string) string { s, _, _ = strings.Cut(s, "\n"); return s }

type fio struct{ path, version, dir, engine string }

func (f *fio) Name() string {
	s := fmt.Sprintf("%s %s, O_DIRECT, huge-page buffers", f.version, f.engine)
	if f.engine == "io_uring" {
		s += ", fixed"
	}
	return s
}

// fioOutput is what we read of fio's JSON.
type fioOutput struct {
	Jobs []struct {
		Error   int     `json:"error"`
		UsrCPU  float64 `json:"usr_cpu"` // per cent of job_runtime
		SysCPU  float64 `json:"sys_cpu"`
		Runtime float64 `json:"job_runtime"` // ms
		Read    fioSide `json:"read"`
		Write   fioSide `json:"write"`
	} `json:"jobs"`
}

type fioSide struct {
	Bytes   int64   `json:"io_bytes"`
	Ops     int64   `json:"total_ios"`
	Runtime float64 `json:"runtime"` // ms
}

func (f *fio) run(ctx context.Context, l load) (Sample, error) {
	args := []string{"--output-format=json", "--ioengine=" + f.engine, "--direct=1", "--iomem=malloc",
		"--iomem_align=2m", "--norandommap", "--randrepeat=0", "--fallocate=none", "--invalidate=0",
		"--rw=" + l.RW, fmt.Sprintf("--bs=%d", l.Size), fmt.Sprintf("--iodepth=%d", l.Depth)}
	if f.engine == "io_uring" {
		args = append(args, "--fixedbufs=1", "--registerfiles=1")
	}
	if l.RW == "write" {
		args = append(args, "--refill_buffers=0", "--overwrite=0")
	}
	span := l.Span
	if span == 0 {
		span = l.Bytes
	}
	args = append(args, fmt.Sprintf("--size=%d", span))
	if l.Seconds > 0 {
		args = append(args, "--time_based", fmt.Sprintf("--runtime=%dms", int(l.Seconds*1000)))
	} else if l.Bytes > 0 && l.Bytes != span {
		args = append(args, fmt.Sprintf("--io_size=%d", l.Bytes))
	}
	for i, path := range l.Files {
		// fio takes ':' for a separator of names.
		args = append(args, fmt.Sprintf("--name=j%d", i), "--filename="+strings.ReplaceAll(path, ":", `\:`))
	}
	cmd := self.Other(ctx, f.path, args...)
	cmd.Dir = f.dir
	// What malloc gets from the kernel it asks to be huge pages, as ours are.
	cmd.Env = append(os.Environ(), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1")
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return Sample{}, fmt.Errorf("fio: %w: %s", err, firstLine(stderr.String()))
	}
	return parseFio(out.Bytes())
}

func parseFio(out []byte) (Sample, error) {
	// Warnings may come before the document.
	if i := bytes.IndexByte(out, '{'); i > 0 {
		out = out[i:]
	}
	var o fioOutput
	if err := json.Unmarshal(out, &o); err != nil {
		return Sample{}, fmt.Errorf("fio's output: %w", err)
	}
	var s Sample
	for _, j := range o.Jobs {
		if j.Error != 0 {
			return Sample{}, fmt.Errorf("fio: job failed: %w", syscall.Errno(j.Error))
		}
		s.Bytes += j.Read.Bytes + j.Write.Bytes
		s.Ops += j.Read.Ops + j.Write.Ops
		// The jobs run at once: the slowest says how long.
		s.Seconds = max(s.Seconds, max(j.Read.Runtime, j.Write.Runtime)/1e3)
		s.CPUSeconds += (j.UsrCPU + j.SysCPU) / 100 * j.Runtime / 1e3
	}
	if s.Bytes == 0 {
		return s, errors.New("fio moved nothing")
	}
	return s, nil
}

// rawLimit does a load with goroutines, where fio is missing.
type rawLimit struct{ name string }

func (r rawLimit) Name() string { return r.name }

func (r rawLimit) run(ctx context.Context, l load) (Sample, error) {
	mem, unmap, err := hugeMemory(int64(len(l.Files)) * int64(l.Depth) * l.Size)
	if err != nil {
		return Sample{}, err
	}
	defer unmap()
	var fds []*os.File
	defer func() {
		for _, f := range fds {
			f.Close()
		}
	}()
	flags := os.O_RDONLY
	if l.RW == "write" {
		flags = os.O_RDWR | os.O_CREATE
	}
	for _, path := range l.Files {
		f, err := os.OpenFile(path, flags|directFlag, 0o644)
		if err != nil {
			return Sample{}, err
		}
		fds = append(fds, f)
	}
	span := max(l.Span, l.Bytes)
	var ops, bytes atomic.Int64
	return timed(func() (int64, int64, error) {
		end := time.Now().Add(time.Duration(l.Seconds * float64(time.Second)))
		var wg sync.WaitGroup
		errs := make([]error, len(fds)*l.Depth)
		for i, fd := range fds {
			var next atomic.Int64
			for d := range l.Depth {
				at := i*l.Depth + d
				buf := mem[int64(at)*l.Size:][:l.Size]
				wg.Go(func() {
					rng := uint64(at)*0x9e3779b97f4a7c15 + 1
					for ctx.Err() == nil {
						k := next.Add(1) - 1
						if l.Seconds > 0 && time.Now().After(end) || l.Seconds == 0 && k*l.Size >= l.Bytes {
							return
						}
						if l.RW == "randread" {
							rng ^= rng << 13
							rng ^= rng >> 7
							rng ^= rng << 17
							k = int64(rng >> 1)
						}
						off := k % (span / l.Size) * l.Size
						var n int
						var err error
						if l.RW == "write" {
							n, err = fd.WriteAt(buf, off)
						} else {
							n, err = fd.ReadAt(buf, off)
						}
						if err != nil || n < len(buf) {
							errs[at] = fmt.Errorf("raw %s of %d bytes at %d: %d: %w", l.RW, l.Size, off, n, errors.Join(err))
							return
						}
						ops.Add(1)
						bytes.Add(int64(n))
					}
				})
			}
		}
		wg.Wait()
		return bytes.Load(), ops.Load(), errors.Join(append(errs, ctx.Err())...)
	})
}

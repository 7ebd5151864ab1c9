package device_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/skepkv/skep/store/device"
)

// BenchmarkRandomRead reads at random from one file at depth 64, every op
// resubmitted from its Done. SKEP_BENCH_FILE names an existing file to read, so
// that fio can be run on the same one; without it a file of 256 MiB is made.
func BenchmarkRandomRead(b *testing.B) {
	path := benchFile(b)
	for _, backend := range []string{device.IOUring, device.Pool} {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", backend, size>>10), func(b *testing.B) {
				d, err := device.Open(path, device.Options{Backend: backend, ReadOnly: true})
				if errors.Is(err, device.ErrUnavailable) {
					b.Skip(err)
				}
				if err != nil {
					b.Fatal(err)
				}
				defer d.Close()
				randomReads(b, d, size, 64)
			})
		}
	}
}

func benchFile(b *testing.B) string {
	if path := os.Getenv("SKEP_BENCH_FILE"); path != "" {
		return path
	}
	path := filepath.Join(b.TempDir(), "bench")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	chunk := make([]byte, 4<<20)
	for range 64 {
		rand.Read(chunk)
		if _, err := f.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return path
}

func randomReads(b *testing.B, d device.Device, size, depth int) {
	arena, free := hugeArena(b, size*depth)
	defer free()
	if err := device.RegisterArena(d, arena); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		b.Log(err)
	}
	places := d.Size() / int64(size)
	var mu sync.Mutex
	started, finished := 0, make(chan error, depth)
	next := func() bool {
		mu.Lock()
		defer mu.Unlock()
		started++
		return started <= b.N
	}
	b.SetBytes(int64(size))
	b.ResetTimer()
	for i := range depth {
		op := &device.Op{Kind: device.Read, Bufs: [][]byte{arena[i*size : (i+1)*size]}}
		op.Done = func(o *device.Op) {
			if o.Err != nil || !next() {
				finished <- o.Err
				return
			}
			o.Offset = mrand.Int64N(places) * int64(size)
			if err := d.Submit([]*device.Op{o}); err != nil {
				finished <- err
			}
		}
		op.Offset = mrand.Int64N(places) * int64(size)
		if !next() {
			finished <- nil
		} else if err := d.Submit([]*device.Op{op}); err != nil {
			b.Fatal(err)
		}
	}
	for range depth {
		if err := <-finished; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

package bench

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// freshReaders is how many reads of the checksum's measurement are under way at once.
const freshReaders = 16

// freshChecksum reads n bytes of files into mem and sums them as they come. Only the
// processor time of summing is in the sample: bytes a drive has just written to memory
// cost more to sum than bytes nobody has touched since they were summed before.
func freshChecksum(files []file, mem [][]byte, n int64) (Sample, error) {
	const size = 1 << 20
	var open []*os.File
	defer func() {
		for _, f := range open {
			f.Close()
		}
	}()
	var per int64
	for i, at := range files {
		f, err := os.OpenFile(at.path, os.O_RDONLY|unix.O_DIRECT, 0)
		if err != nil {
			return Sample{}, err
		}
		open = append(open, f)
		if blocks := at.span / size; i == 0 || blocks < per {
			per = blocks
		}
	}
	places := int64(len(mem[0])) / size
	var next, bytes, cpu atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	for w := range int64(freshReaders) {
		wg.Go(func() {
			runtime.LockOSThread() // the clock is the thread's
			defer runtime.UnlockOSThread()
			for k := int64(0); ; k++ {
				i := next.Add(1) - 1
				if i >= per*int64(len(open)) || i*size >= n {
					return
				}
				// Each reader goes round memory of its own.
				at := (w + k*freshReaders) % (places * int64(len(mem)))
				buf := mem[at/places][at%places*size:][:size]
				if _, err := open[i%int64(len(open))].ReadAt(buf, i/int64(len(open))*size); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				before := threadCPU()
				for at := 0; at < size; at += sumBytes {
					sink.Store(xxh3.Hash(buf[at : at+sumBytes]))
				}
				cpu.Add(threadCPU() - before)
				bytes.Add(size)
			}
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return Sample{}, *e
	}
	return Sample{bytes.Load(), time.Since(start).Seconds(), time.Duration(cpu.Load()).Seconds(), bytes.Load() / sumBytes}, nil
}

// threadCPU is the processor time of the calling thread, in nanoseconds.
func threadCPU() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return ts.Nano()
}

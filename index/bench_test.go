package index

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// measureEnv makes the test binary a child that measures memory and nothing else.
const measureEnv = "SKEP_INDEX_MEASURE_BLOCKS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(measureEnv)); err == nil {
		measure(n, os.Getenv(measureEnv+"_POLICY"))
		return
	}
	os.Exit(m.Run())
}

// chainLen is the length of chain c of a store with mixed depths: 1 to 4,000 blocks,
// most of them short.
func chainLen(c uint64) int {
	return []int{20, 80, 2500, 200, 30, 600, 4000, 10}[c%8]
}

// blocks calls f for n blocks of chains of mixed depth, parents first, a chain after
// the other; entry k of chain c has key c<<16|k.
func blocks(n int, f func(e Entry)) {
	i := 0
	for c := uint64(0); i < n; c++ {
		var parent Fingerprint
		for k := 0; k < chainLen(c) && i < n; k++ {
			e := Entry{FP: fpOf(c<<16 | uint64(k)), Depth: uint32(k), Location: at(uint32(1+i/10_000), uint64(i)+1), Pages: 256, Namespace: 1}
			if k > 0 {
				e.HasParent, e.Parent = true, parent
			}
			parent = e.FP
			f(e)
			i++
		}
	}
}

// measure grows an index one insert at a time, uses it and holds leases, and prints
// by how much the process's peak resident memory grew.
func measure(n int, policy string) {
	before := peakRSS()
	x, err := New(Config{CapacityPages: int64(n) * 256, Policy: policy})
	if err != nil {
		panic(err)
	}
	blocks(n, func(e Entry) {
		if _, _, err := x.Insert(e); err != nil {
			panic(err)
		}
	})
	for c := range uint64(2000) {
		d, deepest := x.Lookup(chainLen(c), func(i int) Fingerprint { return fpOf(c<<16 | uint64(i)) })
		x.TouchChain(deepest, d)
		if d > 0 {
			if _, err := x.Grant(LeaseRequest{Deepest: deepest, FP: fpOf(c<<16 | uint64(d-1)), Bytes: 1, Until: second(100)}); err != nil {
				panic(err)
			}
		}
	}
	x.Tick(second(0))
	x.Survivors(second(0), 100, nil, nil)
	fmt.Printf("grew %d counted %d\n", peakRSS()-before, x.Stats().Bytes)
}

func peakRSS() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kb << 10
		}
	}
	return 0
}

func measureChild(t testing.TB, n int, policy string) (grew, counted float64) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", measureEnv, n), measureEnv+"_POLICY="+policy)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var g, c int64
	_, err = fmt.Sscanf(string(out), "grew %d counted %d", &g, &c)
	require.NoError(t, err, "%s", out)
	return float64(g) / float64(n), float64(c) / float64(n)
}

// The budget is 60 bytes a block with everything counted; BenchmarkBytesPerBlock says
// what it is at 10 M, where fixed costs do not matter.
func TestBytesPerBlock(t *testing.T) {
	t.Parallel()
	if peakRSS() == 0 || raceOn {
		t.Skip("no /proc/self/status, or the race detector is on")
	}
	const n, fixed = 2_000_000, 16 << 20
	grew, counted := measureChild(t, n, "cost")
	t.Logf("%.1f bytes a block of peak resident memory, %.1f counted", grew, counted)
	require.LessOrEqual(t, counted, 60.0)
	require.LessOrEqual(t, grew*n, 60.0*n+fixed, "the process has costs that do not grow")
}

// What a cap of an index is reckoned by holds for each policy, as the index itself counts, and is not much too high.
func TestNoPolicyTakesMoreThanIsReckoned(t *testing.T) {
	t.Parallel()
	const n = 1_800_000
	for _, policy := range []string{"cost", "lru", "s3fifo"} {
		x, err := New(Config{CapacityPages: n * 256, Policy: policy, heap: raceOn})
		require.NoError(t, err)
		for i := range uint32(n) {
			var e Entry
			binary.LittleEndian.PutUint64(e.FP[:], uint64(i)*0x9e3779b97f4a7c15)
			e.Location, e.Pages = at(1+i/10_000, uint64(i)+1), 1
			_, _, err := x.Insert(e)
			require.NoError(t, err)
		}
		took, reckoned := float64(x.Stats().Bytes)/n, float64(BytesPerBlock(policy))
		x.Close()
		require.LessOrEqual(t, took, reckoned, policy)
		if policy == "s3fifo" { // nothing was evicted
			reckoned -= ghostBytes
		}
		require.Greater(t, took, reckoned-8, policy)
	}
}

// What is counted for s3fifo's ghosts is what they take, whatever number of them there is, and is not much too high.
//
// Alone: it measures the heap of the process.
func TestGhostsTakeWhatIsCounted(t *testing.T) {
	for _, n := range []int{30_000, 350_000, 600_000} {
		s := &s3fifo{ghost: map[fp96]uint32{}}
		s.q[main].blocks = uint32(n - 1)
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		for i := range uint32(3 * n) { // two thirds are forgotten again
			s.remember(fp96{i, i * 0x9e3779b9, 1})
		}
		took, counted := heap()-before, int64(s.most)*ghostBytes
		require.Equal(t, n, len(s.ghost))
		require.LessOrEqual(t, took, counted)
		require.Greater(t, took, counted/3)
	}
}

func BenchmarkBytesPerBlock(b *testing.B) {
	for _, policy := range []string{"cost", "lru", "s3fifo"} {
		b.Run(policy+"/10M", func(b *testing.B) {
			for range b.N {
				grew, counted := measureChild(b, 10_000_000, policy)
				b.ReportMetric(grew, "B/block")
				b.ReportMetric(counted, "B/block-counted")
			}
		})
	}
}

func loaded(b *testing.B, n int) *Index {
	x, err := New(Config{CapacityPages: int64(n) * 256})
	require.NoError(b, err)
	b.Cleanup(x.Close)
	var list []Entry
	blocks(n, func(e Entry) {
		if list = append(list, e); len(list) == 1<<16 {
			require.NoError(b, x.BulkLoad(list))
			list = list[:0]
		}
	})
	require.NoError(b, x.BulkLoad(list))
	return x
}

// BenchmarkLookup asks for 2,000 keys of a random chain, of which a random part is
// stored, while nothing else goes on, and while puts, restores and moves do.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{1_000_000, 10_000_000} {
		x := loaded(b, n)
		chains := uint64(n / 930)
		for _, busy := range []bool{false, true} {
			b.Run(fmt.Sprintf("2000keys/%dM/busy=%v", n/1_000_000, busy), func(b *testing.B) {
				stop, done := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(done)
					for i := uint64(0); busy; i++ {
						select {
						case <-stop:
							return
						default:
						}
						c := 1<<40 + i<<16
						for k := range uint64(64) {
							e := Entry{FP: fpOf(c + k), Depth: uint32(k), Location: at(7, k+1), Pages: 256}
							if k > 0 {
								e.HasParent, e.Parent = true, fpOf(c+k-1)
							}
							_, _, _ = x.Insert(e)
						}
						for k := range uint64(64) {
							x.Remove(fpOf(c+63-k), AnyLocation)
						}
						time.Sleep(100 * time.Microsecond)
					}
				}()
				rng := rand.New(rand.NewPCG(1, 2))
				times := make([]time.Duration, 0, 1<<20)
				b.ResetTimer()
				for range b.N {
					c := rng.Uint64N(chains)
					start := time.Now()
					x.Lookup(2000, func(i int) Fingerprint { return fpOf(c<<16 | uint64(i)) })
					if len(times) < cap(times) {
						times = append(times, time.Since(start))
					}
				}
				b.StopTimer()
				close(stop)
				<-done
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
				b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
			})
		}
		x.Close()
	}
}

func BenchmarkInsert(b *testing.B) {
	x, err := New(Config{CapacityPages: 1 << 40})
	require.NoError(b, err)
	b.Cleanup(x.Close)
	var list []Entry
	blocks(b.N, func(e Entry) { list = append(list, e) })
	b.ResetTimer()
	for _, e := range list {
		if _, _, err := x.Insert(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTouchChain(b *testing.B) {
	x := loaded(b, 1_000_000)
	d, deepest := x.Lookup(2500, func(i int) Fingerprint { return fpOf(2<<16 | uint64(i)) })
	require.Equal(b, 2500, d)
	b.ResetTimer()
	for range b.N {
		x.TouchChain(deepest, d)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2500, "ns/block")
}

func BenchmarkResolveChain(b *testing.B) {
	x := loaded(b, 1_000_000)
	fp := func(i int) Fingerprint { return fpOf(2<<16 | uint64(i)) }
	d, deepest := x.Lookup(2500, fp)
	dst := make([]Entry, 0, d)
	b.ResetTimer()
	for range b.N {
		if _, err := x.ResolveChain(deepest, fp, 0, d, dst); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2500, "ns/block")
}

// BenchmarkBulkLoad opens an index of 1 M and 10 M blocks: chains in order, as a
// checkpoint or a range scan gives them, and shuffled.
func BenchmarkBulkLoad(b *testing.B) {
	for _, n := range []int{1_000_000, 10_000_000} {
		for _, shuffled := range []bool{false, true} {
			if shuffled && n > 1_000_000 {
				continue // 800 MB of entries more
			}
			b.Run(fmt.Sprintf("%dM/shuffled=%v", n/1_000_000, shuffled), func(b *testing.B) {
				list := make([]Entry, 0, n)
				blocks(n, func(e Entry) { list = append(list, e) })
				if shuffled {
					rng := rand.New(rand.NewPCG(3, 4))
					rng.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
				}
				var cpu time.Duration
				b.ResetTimer()
				for range b.N {
					x, err := New(Config{CapacityPages: 1 << 40})
					require.NoError(b, err)
					before := cpuTime()
					require.NoError(b, x.BulkLoad(list))
					cpu += cpuTime() - before
					require.EqualValues(b, n, x.Stats().Rooted)
					b.StopTimer()
					x.Close()
					b.StartTimer()
				}
				b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
			})
		}
	}
}

func BenchmarkGrant(b *testing.B) {
	x := loaded(b, 1_000_000)
	fp := func(i int) Fingerprint { return fpOf(2<<16 | uint64(i)) }
	d, deepest := x.Lookup(2500, fp)
	r := LeaseRequest{Deepest: deepest, FP: fp(d - 1), Bytes: 1, Until: second(1)}
	b.ResetTimer()
	for range b.N {
		id, err := x.Grant(r)
		if err != nil {
			b.Fatal(err)
		}
		x.Release(id)
	}
}

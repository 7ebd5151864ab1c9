package bench

import (
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// Common options of all benchmarks.
type Common struct {
	Dir     string // where stores and files are made; removed afterwards
	Rounds  int    // 7 by default
	Backend string // of the devices: auto, iouring, pool
	Log     *slog.Logger
	Note    func(format string, args ...any) // progress; nil: none
}

// DefaultRounds is the fewest rounds a median is reported of.
const DefaultRounds = 7

// EnsureDefaults sets what is not set.
func (c *Common) EnsureDefaults() {
	if c.Rounds == 0 {
		c.Rounds = DefaultRounds
	}
	if c.Note == nil {
		c.Note = func(string, ...any) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate says what of it cannot be.
func (c *Common) Validate() error {
	if c.Rounds < 1 || c.Rounds > 1000 {
		return skep.Invalidf("bench", "--rounds", c.Rounds, "1 to 1000")
	}
	return nil
}

// Workspace makes a directory of this benchmark's own and says how to remove it.
func (c *Common) Workspace(name string) (dir string, remove func(), err error) {
	if c.Dir != "" {
		if err := os.MkdirAll(c.Dir, 0o755); err != nil {
			return "", nil, err
		}
	}
	dir, err = os.MkdirTemp(c.Dir, "skep-bench-"+name+"-")
	if err != nil {
		return "", nil, err
	}
	return dir, func() { os.RemoveAll(dir) }, nil
}

// About says what moved the bytes.
type About struct {
	// what moved the bytes, the first where several did; empty where none were moved
	Backend       string `json:"backend"`
	BackendReason string `json:"backend_reason"` // why not a better one
	Simulated     bool   `json:"simulated"`      // a device is a simulation, or a row is a model's
}

func about(s skep.Stats) About { return About{s.Backend, s.BackendReason, s.Simulated} }

// Sample is one timed run.
type Sample struct {
	Bytes      int64   `json:"bytes"`       // moved in one round (bytes)
	Seconds    float64 `json:"seconds"`     // it took (s)
	CPUSeconds float64 `json:"cpu_seconds"` // CPU of the process; 0 where a limit does not tell (s)
	Ops        int64   `json:"ops"`         // blocks (ours), values (of a server), operations (fio), reads or sums
}

// GBps is 10^9 bytes a second.
func (s Sample) GBps() float64 { return Div(float64(s.Bytes)/1e9, s.Seconds) }

// IOPS is operations a second.
func (s Sample) IOPS() float64 { return Div(float64(s.Ops), s.Seconds) }

// CPUPerGB is CPU seconds for 10^9 bytes.
func (s Sample) CPUPerGB() float64 { return Div(s.CPUSeconds, float64(s.Bytes)/1e9) }

// Div is a ÷ b, and 0 where b is.
func Div(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// median of f over samples; the lower middle of an even number.
func median(samples []Sample, f func(Sample) float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	v := make([]float64, len(samples))
	for i, s := range samples {
		v[i] = f(s)
	}
	slices.Sort(v)
	return v[(len(v)-1)/2]
}

// timed runs f and measures it, with the CPU of this process.
func timed(f func() (bytes, ops int64, err error)) (Sample, error) {
	cpu, start := processCPU(), time.Now()
	bytes, ops, err := f()
	return Sample{bytes, time.Since(start).Seconds(), processCPU() - cpu, ops}, err
}

package schedule

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Place is where goroutines can be made to wait.
type Place struct {
	File string `json:"file"` // from the repository's root
	Line int    `json:"line"`
	Text string `json:"text"` // of the source
}

// Load reads the list of places that tools/schedule wrote.
func Load(name string) (list []Place, err error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return list, json.Unmarshal(b, &list)
}

// Limit is how many places there may be.
const Limit = 1 << 14

// longest is how long a goroutine sleeps at most.
const longest = 4 * time.Millisecond

var (
	passed  [Limit]atomic.Bool
	current atomic.Pointer[Plan]
)

// Plan says where goroutines wait.
type Plan struct {
	Seed uint64
	Hot  []int // places, by number
	hot  [Limit]bool
	here [Limit]atomic.Uint32 // passes under this plan
	left atomic.Int64         // passes until the next plan, where one follows by itself
}

// NewPlan draws a plan over a list of places.
func NewPlan(seed uint64, list []Place) *Plan {
	p := &Plan{Seed: seed}
	rng := rand.New(rand.NewPCG(seed, 1))
	heat := func(i int) {
		if !p.hot[i] {
			p.hot[i] = true
			p.Hot = append(p.Hot, i)
		}
	}
	if len(list) == 0 {
		return p
	}
	if rng.IntN(3) == 0 {
		for range 8 + rng.IntN(56) {
			heat(rng.IntN(len(list)))
		}
		return p
	}
	var states []Place // where a state is changed only if it is what it was: the heart of what is without a lock
	for _, x := range list {
		if strings.Contains(x.Text, ".CompareAndSwap(") {
			states = append(states, x)
		}
	}
	for range 1 + rng.IntN(3) {
		at := list[rng.IntN(len(list))]
		if len(states) > 0 && rng.IntN(2) == 0 {
			at = states[rng.IntN(len(states))]
		}
		reach := 20 + rng.IntN(100) // lines
		for i, x := range list {
			if x.File == at.File && max(x.Line-at.Line, at.Line-x.Line) <= reach && rng.IntN(4) > 0 {
				heat(i)
			}
		}
	}
	return p
}

// Use puts a plan into force, nil for none.
func Use(p *Plan) { current.Store(p) }

// Passed says how many places were passed since the process began.
func Passed() (n int) {
	for i := range passed {
		if passed[i].Load() {
			n++
		}
	}
	return n
}

// Pause is a place: it returns at once or after a while.
func Pause(n int) {
	if !passed[n].Load() {
		passed[n].Store(true)
	}
	p := current.Load()
	if p == nil {
		return
	}
	count := uint64(p.here[n].Add(1))
	if p.left.Load() > 0 && p.left.Add(-1) == 0 {
		current.CompareAndSwap(p, drawn(p.Seed+1))
	}
	switch x := mix(p.Seed ^ uint64(n)<<32 ^ count); {
	case p.hot[n] && x>>16%max(2, count/32) == 0: // what is passed in loops cools down
		sleep(x >> 8)
	case x&31 == 1:
		runtime.Gosched()
	case x&2047 == 3:
		sleep(x >> 11)
	}
}

// After is a place behind an expression: between what was seen and what is done about it.
func After[T any](n int, v T) T {
	Pause(n)
	return v
}

// sleep sleeps for 4 µs to longest, each power of two as often as the next.
func sleep(x uint64) {
	d := longest >> (x % 11)
	time.Sleep(d/2 + time.Duration(x>>8)%(d/2+1))
}

// mix is SplitMix64's finaliser: a random number for every number.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Environment variables, for tests that know nothing of this package: with both set, plans follow one another, one
// every some ten thousand passes.
const (
	EnvSeed = "SKEP_SCHEDULE_SEED"
	EnvList = "SKEP_SCHEDULE" // the directory tools/schedule wrote
)

const passesOfAPlan = 20000

var everywhere []Place

func init() {
	seed, err := strconv.ParseUint(os.Getenv(EnvSeed), 10, 64)
	if err != nil {
		return
	}
	if everywhere, err = Load(os.Getenv(EnvList) + "/places.json"); err != nil {
		panic(err) // a test build's own mistake: nothing would wait anywhere
	}
	Use(drawn(seed))
}

func drawn(seed uint64) *Plan {
	p := NewPlan(seed, everywhere)
	p.left.Store(passesOfAPlan)
	return p
}

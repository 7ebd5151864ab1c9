package health

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/drawn"
)

// The judgement of drives, as a story a tick: what it did, and what becomes of it.
func TestHealth(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	well := pulse{reads: 10, readOK: 10, mean: 2 * ms, peers: 2 * ms, company: true}
	sluggish := pulse{reads: 10, readOK: 10, mean: 200 * ms, peers: 2 * ms, company: true}
	loaded := pulse{reads: 10, readOK: 10, mean: 200 * ms, peers: 190 * ms, company: true}
	alone := pulse{reads: 10, readOK: 10, mean: 200 * ms}
	idle := pulse{company: true}
	good := pulse{probe: GoodProbe, took: 1 * ms, company: true}
	lame := pulse{probe: GoodProbe, took: 300 * ms, company: true}
	badProbe := pulse{probe: BadProbe, company: true}
	type scene struct {
		pulse pulse
		times int
		then  State
	}
	for _, tt := range []struct {
		name   string
		scenes []scene
	}{
		{"well for ever", []scene{{well, 1000, Healthy}}},
		{"all under load are slow, so none is", []scene{{well, 20, Healthy}, {loaded, 100, Healthy}}},
		{"one hiccup is forgiven", []scene{{well, 20, Healthy}, {sluggish, 2, Healthy}, {well, 1, Healthy}, {sluggish, 2, Healthy}}},
		{"slow, then fenced, then let in", []scene{{well, 20, Healthy}, {sluggish, 3, Slow}, {sluggish, 31, Fenced}, {lame, 20, Fenced}, {good, 2, Fenced}, {good, 1, Healthy}}},
		{"slow and well again without being fenced", []scene{{well, 20, Healthy}, {sluggish, 3, Slow}, {good, 2, Slow}, {good, 1, Healthy}}},
		{"slow with nobody to compare it with: the load, maybe", []scene{{well, 20, Healthy}, {alone, 3, Slow}, {alone, 1000, Slow}, {well, 3, Healthy}}},
		{"compared at last", []scene{{well, 20, Healthy}, {alone, 1000, Slow}, {sluggish, 1, Fenced}}},
		{"few reads prove nothing", []scene{{pulse{reads: 2, readOK: 2, mean: time.Second, peers: ms, company: true}, 100, Healthy}}},
		{"hung while others go on", []scene{{well, 5, Healthy}, {pulse{readsStalled: 900 * ms, company: true}, 1, Healthy}, {pulse{readsStalled: time.Second, company: true}, 1, Dead},
			{pulse{readsStalled: 9 * time.Second, company: true}, 50, Dead}, {good, 3, Healthy}}},
		{"the whole machine stands still", []scene{{pulse{readsStalled: 5 * time.Second}, 1, Healthy}, {pulse{readsStalled: 10 * time.Second}, 1, Dead}}},
		{"slow flushes are no hang", []scene{{pulse{writesStalled: 5 * time.Second, company: true}, 50, Healthy}, {pulse{writesStalled: 10 * time.Second, company: true}, 1, Dead}}},
		{"bad sectors among good ones", []scene{{pulse{readOK: 9, readFailed: 1, company: true}, 100, Healthy}}},
		{"reads fail", []scene{{pulse{readFailed: 2, company: true}, 1, Healthy}, {pulse{readFailed: 1, company: true}, 1, Fenced}, {badProbe, 10, Fenced}, {good, 2, Fenced}, {badProbe, 1, Fenced}, {good, 3, Healthy}}},
		{"writes fail while reads go on", []scene{{pulse{readOK: 5, writeFailed: 3, company: true}, 1, Fenced}}},
		{"flushes fail while writes go on", []scene{{pulse{writeOK: 5, flushFailed: 1, company: true}, 3, Fenced}}},
		{"an error an hour is none too many", []scene{{pulse{writeFailed: 1, company: true}, 1, Healthy}, {pulse{writeOK: 1, company: true}, 1, Healthy}, {pulse{writeFailed: 1, company: true}, 2, Healthy}}},
		{"gone", []scene{{pulse{gone: true, readFailed: 1, company: true}, 1, Dead}, {idle, 100, Dead}}},
		{"long ago gone, and nothing failed since", []scene{{pulse{gone: true, readOK: 1, company: true}, 10, Healthy}}},
		{"read-only", []scene{{pulse{readOnly: true, writeFailed: 1, company: true}, 1, Fenced}}},
		{"worse while fenced", []scene{{pulse{readOnly: true, writeFailed: 1, company: true}, 1, Fenced}, {pulse{gone: true, readFailed: 1, company: true}, 1, Dead}}},
		{"who falls again has to prove more", []scene{{pulse{writeFailed: 3, company: true}, 1, Fenced}, {good, 3, Healthy}, {pulse{writeFailed: 3, company: true}, 1, Fenced}, {good, 5, Fenced}, {good, 1, Healthy},
			{pulse{writeFailed: 3, company: true}, 1, Fenced}, {good, 11, Fenced}, {good, 1, Healthy}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &Judge{rules: DefaultRules}
			at := time.Duration(0)
			for i, sc := range tt.scenes {
				for range sc.times {
					p := sc.pulse
					at += h.rules.Tick
					p.at = at
					h.step(&p)
				}
				require.Equal(t, sc.then, h.state, "after scene %d: %s", i, h.why)
			}
		})
	}
}

// Whatever drives do, none goes from one state into another but as the table says; and all that the
// table allows happens.
func TestTransitions(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 0))
	seen := [states][states]int{}
	for range 200 {
		j := &Judge{rules: DefaultRules}
		at := time.Duration(0)
		p := draw(rng)
		for range 400 {
			was := j.state
			if rng.IntN(12) == 0 {
				p = draw(rng)
			}
			at += j.rules.Tick
			p.at = at
			j.step(&p)
			require.Equal(t, j.state == Healthy, j.why == "", "in state %v: %q", j.state, j.why)
			if was != j.state {
				require.True(t, transitions[was][j.state], "from %v to %v: %s", was, j.state, j.why)
				seen[was][j.state]++
			}
		}
	}
	for from, row := range transitions {
		for to, legal := range row {
			if legal {
				require.Positive(t, seen[from][to], "from %v to %v", State(from), State(to))
			}
		}
	}
}

// draw is any pulse, most of them of a drive that is well.
func draw(rng *rand.Rand) pulse {
	const ms = time.Millisecond
	p := pulse{reads: 10, readOK: 10, mean: 2 * ms, peers: 2 * ms, company: rng.IntN(4) > 0, probe: GoodProbe, took: ms}
	switch rng.IntN(20) {
	case 0:
		p.readFailed, p.readOK = 3, 0
	case 1:
		p.writeFailed, p.gone = 1, rng.IntN(2) == 0
	case 2:
		p.flushFailed, p.readOnly = 1, rng.IntN(2) == 0
	case 3:
		p.readsStalled = time.Duration(rng.IntN(20)) * time.Second
	case 4:
		p.unlinked = true
	case 5:
		p.probe = BadProbe
	case 6:
		p.forced = errors.New("a write failed")
	case 7, 8, 9:
		p.mean = 200 * ms
	}
	return p
}

// How long a read may take follows the drive's own latency, within bounds.
func TestHedgeAfter(t *testing.T) {
	t.Parallel()
	r := DefaultRules
	require.Equal(t, r.HedgeMin, r.hedgeAfter(Healthy, 0))
	require.Equal(t, 400*time.Millisecond, r.hedgeAfter(Healthy, 50*time.Millisecond))
	require.Equal(t, r.HedgeMax, r.hedgeAfter(Healthy, time.Minute))
	require.Equal(t, r.HedgeMin, r.hedgeAfter(Slow, time.Minute))
	require.Zero(t, r.hedgeAfter(Dead, time.Minute))
}

// A drive that does not answer stands still for as long as the monitor looks on: a pause of the
// machine counts as one step.
func TestStoodStill(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var stood time.Duration
	for i, tt := range []struct{ says, step, want time.Duration }{
		{0, 100 * ms, 0},
		{60 * ms, 100 * ms, 60 * ms},
		{160 * ms, 100 * ms, 160 * ms},
		{30 * time.Second, 500 * ms, 660 * ms}, // the machine slept
		{31 * time.Second, 500 * ms, 1160 * ms},
		{20 * ms, 100 * ms, 20 * ms}, // it has answered, and owes another
	} {
		stood = stoodStill(stood, tt.says, tt.step)
		require.Equal(t, tt.want, stood, "look %d", i)
	}
}

// One bad page in many reads is no bad drive.
func TestABadPageIsNoBadDrive(t *testing.T) {
	t.Parallel()
	h := &Judge{rules: DefaultRules}
	for range 1000 {
		require.Equal(t, Healthy, h.step(&pulse{readOK: 10, wrong: 1}))
	}
	// Reads may be counted in one look, and found wrong in the next.
	for range 7 {
		require.Equal(t, Healthy, h.step(&pulse{readOK: 1}))
		require.Equal(t, Healthy, h.step(&pulse{wrong: 1}))
		require.Equal(t, Healthy, h.step(&pulse{readOK: 1}))
	}
	h.step(&pulse{wrong: 8})
	require.Equal(t, Fenced, h.state)
	require.True(t, h.reads, "what it holds is copied elsewhere")
}

// Looks at drives by their counters: what a drive did before it was looked at first, and what it did
// in common with the others, is not held against it.
func TestLook(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	rules := DefaultRules
	before := Reading{Stats: device.Stats{Reads: device.OpStats{Ops: 100, Errors: 50}}, Wrong: 70}
	drives := []*Judge{NewJudge(rules, before), NewJudge(rules, Reading{}), NewJudge(rules, Reading{})}
	at := time.Duration(0)
	readings := []Reading{before, {}, {}}
	look := func(times int, did func(i int, r *Reading)) {
		for range times {
			at += rules.Tick
			for i := range readings {
				readings[i].Forced, readings[i].Probe = nil, NoProbe
				did(i, &readings[i])
			}
			Look(at, drives, readings)
		}
	}
	reads := func(r *Reading, mean time.Duration) {
		r.Stats.Reads.Ops += 10
		r.Stats.Reads.LatencySum += 10 * mean
	}
	states := func() (list []State) {
		for _, j := range drives {
			list = append(list, j.State())
		}
		return list
	}
	look(20, func(_ int, r *Reading) { reads(r, 2*ms) })
	require.Equal(t, []State{Healthy, Healthy, Healthy}, states())
	look(20, func(_ int, r *Reading) { reads(r, 200*ms) })
	require.Equal(t, []State{Healthy, Healthy, Healthy}, states(), "the load is no drive's fault")
	look(100, func(_ int, r *Reading) { reads(r, 2*ms) })
	look(3, func(i int, r *Reading) { reads(r, time.Duration(2+198*(i%2))*ms) })
	require.Equal(t, []State{Healthy, Slow, Healthy}, states())
	require.Equal(t, rules.HedgeMin, drives[1].HedgeAfter(Slow))

	look(1, func(i int, r *Reading) {
		reads(r, 2*ms)
		if i == 2 {
			r.Forced = errors.New("a write failed")
		}
	})
	require.Equal(t, Fenced, drives[2].State())
	require.Equal(t, "a write failed", drives[2].Why())
	require.False(t, drives[2].Unreadable(), "its writes are at fault")
	probe, write := drives[2].WantsProbe(at)
	require.True(t, probe && write)
	probe, _ = drives[2].WantsProbe(at + rules.ProbeEvery/2)
	require.False(t, probe, "one at a time")
	probe, _ = drives[0].WantsProbe(at)
	require.False(t, probe, "it is well")
	look(3, func(i int, r *Reading) {
		if i == 2 {
			r.Probe, r.Took = GoodProbe, ms
		}
	})
	require.Equal(t, Healthy, drives[2].State())

	look(1, func(i int, r *Reading) {
		if i == 0 {
			r.Wrong += int64(rules.Wrong)
		}
	})
	require.Equal(t, Fenced, drives[0].State())
	require.True(t, drives[0].Unreadable())
}

// A drive does not answer, and no other has anything to do: they are asked for a sign of life, and only who gives one
// says that it is no fault of the machine, or of the disk under all of them.
func TestIdleDrivesAreAskedWhileOneDoesNotAnswer(t *testing.T) {
	t.Parallel()
	rules := DefaultRules
	drives := []*Judge{NewJudge(rules, Reading{}), NewJudge(rules, Reading{}), NewJudge(rules, Reading{})}
	readings := make([]Reading, 3)
	at, owed := time.Duration(0), time.Duration(0) // from when on the first does
	look := func(times int, answers ...int) {
		for range times {
			at += rules.Tick
			readings[0].Stats.ReadsStalled = max(0, at-owed)
			for _, i := range answers {
				readings[i].Stats.Reads.Ops++
			}
			Look(at, drives, readings)
		}
	}
	asked := func() (list []bool) {
		for _, j := range drives {
			probe, write := j.WantsProbe(at)
			require.False(t, write)
			list = append(list, probe)
		}
		return list
	}
	owed = at + 2*rules.Tick
	look(4, 1, 2)
	require.Equal(t, []bool{false, false, false}, asked(), "that is not long")
	owed = at
	look(3)
	require.Equal(t, []bool{false, true, true}, asked())
	require.Equal(t, []bool{false, false, false}, asked(), "one at a time")
	look(30)
	require.Equal(t, Healthy, drives[0].State(), "nobody answers")
	look(1, 2)
	require.Equal(t, Dead, drives[0].State())
	require.Equal(t, Healthy, drives[2].State())

	owed = at + time.Hour
	look(3)
	require.Equal(t, []bool{true, false, false}, asked(), "one is dead, and nobody stands still")
}

// A look comes late, on a machine that stands still: what another drive did before that is no sign of life.
func TestALateLookIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	rules := DefaultRules
	drives := []*Judge{NewJudge(rules, Reading{}), NewJudge(rules, Reading{})}
	readings := make([]Reading, 2)
	at := rules.Tick
	look := func() { Look(at, drives, readings) }
	look()
	readings[1].Stats.Reads.Ops++
	began := at
	for at += 5 * rules.Tick; at < began+9*time.Second; at += rules.Tick {
		readings[0].Stats.ReadsStalled, readings[1].Stats.ReadsStalled = at-began, max(0, at-began-5*rules.Tick)
		look()
		require.Equal(t, []State{Healthy, Healthy}, []State{drives[0].State(), drives[1].State()}, at)
	}
}

// What cannot be read counts as lost after a while, and not any more once it can be; a drive that was
// taken out is not judged.
func TestLoss(t *testing.T) {
	t.Parallel()
	rules := DefaultRules
	rules.LostAfter = 10 * rules.Tick
	missing, gone, out := NewMissing(rules, 0, Dead, Reading{}), NewJudge(rules, Reading{}), NewJudge(rules, Reading{})
	drives := []*Judge{missing, gone, out}
	at := time.Duration(0)
	look := func(times int, r Reading) {
		for range times {
			at += rules.Tick
			ignored := r
			ignored.Ignored = true
			Look(at, drives, []Reading{{}, r, ignored})
		}
	}
	require.True(t, missing.Unreadable())
	unlinked := Reading{Unlinked: true}
	look(10, unlinked)
	require.Equal(t, []bool{false, false, false}, []bool{missing.Lost(), gone.Lost(), out.Lost()})
	look(2, unlinked)
	require.Equal(t, []bool{true, true, false}, []bool{missing.Lost(), gone.Lost(), out.Lost()})
	require.Equal(t, Healthy, out.State())
	require.False(t, gone.Unreadable(), "it is open yet")
	look(1, Reading{})
	require.False(t, gone.Lost(), "its file is back")
}

func TestStreak(t *testing.T) {
	t.Parallel()
	var s Streak
	fired := 0
	note := func(failed bool, times int) {
		for range times {
			if s.Note(failed) {
				fired++
			}
		}
	}
	note(true, FailuresInARow-1)
	note(false, 1)
	note(true, FailuresInARow-1)
	require.Zero(t, fired)
	note(true, 10)
	require.Equal(t, 1, fired, "once")
	s.Forget()
	note(true, 10)
	require.Equal(t, 2, fired)
}

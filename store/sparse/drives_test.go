package sparse

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// The model of the drives follows the batches it is shown, whatever it began with.
func TestDrivesAreLearnt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ wait, base, page float64 }{
		"bytes and operations":     {0, 1e-6, .6e-6},
		"a seek":                   {0, 1e-4, 2e-5},
		"a wait before everything": {5e-5, 2e-6, 1e-6},
		"bytes alone":              {1e-5, 0, 1e-6},
	} {
		d := newDrives(layout.ReadCost{})
		rng := rand.New(rand.NewPCG(1, 1))
		for range 400 {
			runs := 1 + rng.IntN(64)
			pages := runs * (1 + rng.IntN(16))
			took := (c.wait + c.base*float64(runs) + c.page*float64(pages)) * (.95 + .1*rng.Float64())
			d.learn(runs, pages, time.Duration(took*1e9))
		}
		got := d.now()
		require.InEpsilon(t, c.page, got.Page, .1, name)
		require.InDelta(t, c.base, got.Base, .1*c.base+.5*c.page, name)
	}
}

func TestDrivesThatAreToldAreNotLearnt(t *testing.T) {
	t.Parallel()
	told := layout.ReadCost{Page: 1e-6, Least: 2e-6}
	d := newDrives(told)
	d.learn(1, 1, time.Second)
	require.Equal(t, told, d.now())
	d = newDrives(layout.ReadCost{})
	first := d.now()
	require.InEpsilon(t, 1/5e5, first.Of(1), .01, "a drive of the middle")
	d.learn(0, 0, time.Second)
	d.learn(2, 1, time.Second)
	d.learn(1, 1, 0)
	require.Equal(t, first, d.now(), "no batch")
	for range 1000 { // all alike: they do not tell runs from pages
		d.learn(8, 8, time.Millisecond)
	}
	c := d.now()
	require.Positive(t, c.Page)
	require.InEpsilon(t, 1e-3, 8*c.Of(1), .2)
	require.LessOrEqual(t, c.Base, maxBasePages*c.Page)
}

// growing is a Store that says on which of its drives each block is, and that gets more of them.
type growing struct {
	*hooked
	drives int
	on     func(skep.Key) int
}

func (g *growing) DeviceCount() (int, error) { return g.drives, nil }

func (g *growing) DeviceOf(_ skep.Scope, key skep.Key) (int, error) { return g.on(key), nil }

// A drive that is added is reckoned with by what is read, and written, from then on.
func TestADriveThatIsAddedIsReckonedWith(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	g := &growing{b.st, 2, func(skep.Key) int { return 0 }}
	sp, err := New(g, Options{Cost: layout.ReadCost{Page: 1e-6, Least: 2e-6}, Alone: true})
	require.NoError(t, err)
	require.NoError(t, b.sp.Close(b.ctx))
	b.sp = sp
	k := b.clustered()
	require.Len(t, k.layers[0].arranged().where, 2)

	g.drives = 3
	require.NoError(t, k.Close(b.ctx))
	moved := k.layers[0].arranged().recordKeys(k, 0)[0] // cleaning moves blocks
	g.on = func(key skep.Key) int {
		if key == moved {
			return 2
		}
		return 0
	}
	k = b.clustered()
	require.Equal(t, 3, k.Info().Devices)
	a := k.layers[0].arranged()
	require.Equal(t, []blockAt{{0, 0}}, a.where[2])
	require.NoError(t, b.fetch(k, bedTokens))
	next, err := k.deal(2, a.entries, a.clusters, nil)
	require.NoError(t, err)
	require.Len(t, next.at, 3)
}

package restore

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/layout/twopointer"
)

// choose decides by which way a chain goes that may go either: by layers when it is alone and shorter than L_Δ, which
// the scheduler reckons from what computing is said to cost, how much slower than that the engine was seen to be, and
// what the drives were seen to move. It is decided once, before the session begins: what chunks it comes in
// depends on it. beside is how many other chains of its session are restored by two pointers.
func (t *twoPointers) choose(c *chain, beside int) (skep.Direction, error) {
	n := c.Blocks.Len()
	if n == 0 || !c.Structured || c.Compute.Boundary != nil || n*c.Layers.Len() > layout.MaxChunks {
		return skep.TailFirst, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ready(); err != nil {
		return 0, err
	}
	st := t.strand(c)
	st.Decided, st.Layers = false, c.Layers.Len()
	mode := t.sched.ModeOf(st, beside)
	turn, _ := t.sched.Crossover()
	t.rs.Log.Debug("restoring either way", "tokens", st.Tokens-st.Start, "by", mode.String(), "crossover", turn)
	if mode == twopointer.ByLayers {
		t.byLayers++
		return skep.LayersDown, nil
	}
	t.byTokens++
	return skep.TailFirst, nil
}

// Direction implements skep.Session.
func (ses *session) Direction(_ context.Context, i int) (skep.Direction, error) {
	c, err := ses.chainAt("direction", i)
	if err != nil {
		return 0, err
	}
	return c.Direction, nil
}

package loan

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/elastic"
)

// Demand has the lender's own side have the blocks that d needs, as far as they are lent
// (elastic.Arena.ScaleUp): it returns as Move does, at once where there is enough.
func (l *Lender) Demand(ctx context.Context, d elastic.Demand) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return &skep.Error{Op: opLend, Kind: skep.Closed}
	}
	l.peak.See(int64(now()), d.Need())
	if up := l.arena.ScaleUp(d); up > 0 {
		return l.moveLocked(ctx, max(l.offer, l.arena.Border()+up)) // more may be on its way back
	}
	return nil
}

// Relax lends what the lender's own side did not need within the window, but for headroom
// blocks (elastic.Arena.ScaleDown), and says how many units more may be lent.
func (l *Lender) Relax(headroom int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || l.machine.Border() < l.offer { // units are on their way back: it wanted them
		return 0
	}
	down := l.arena.ScaleDown(l.peak.At(int64(now())), headroom)
	if down > 0 {
		_ = l.moveLocked(context.Background(), l.arena.Border()-down) // downwards it waits for nothing
	}
	return down
}

package moving

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
)

// Rebalance spreads what is stored over devices that were added, and returns when they
// are filled about alike. The same goes on in the background by itself.
func (m *Mover) Rebalance(ctx context.Context, o report.MoveOptions) (p report.Progress, err error) {
	const op = "rebalance"
	if err := m.Gate.EnterWrite(ctx, op); err != nil {
		return p, err
	}
	defer m.Gate.Leave()
	ctx, cancel := gate.Until(ctx, m.Closing)
	defer cancel()
	if err := m.Take(ctx); err != nil {
		return p, err
	}
	defer m.Give()
	p.Task, p.Device = taskRebalance, -1
	began, b := time.Now(), m.Space.Pace(o.Rate)
	w := m.Works.Begin(taskRebalance, 0)
	defer w.End()
	skip := map[*space.Group]bool{}
	for {
		g := m.Space.Unbalanced(m.Space.Groups(), func(g *space.Group) bool { return !skip[g] && m.ready(g) })
		if g == nil || o.DryRun {
			break
		}
		if err := m.moveGroup(ctx, g, job{task: taskRebalance, work: w}, b, &p); err != nil {
			if ctx.Err() != nil {
				return p, &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
			}
			skip[g] = true
		}
		p.GroupsDone++
		p.Seconds = time.Since(began).Seconds()
		if o.Progress != nil {
			o.Progress(p)
		}
	}
	m.note(p)
	return p, nil
}

package moving

import (
	"context"
	"time"

	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
)

// run moves what there is a reason to move, until the store closes.
func (m *Mover) run() {
	tick := time.NewTicker(m.Every)
	defer tick.Stop()
	for {
		select {
		case <-m.Closing:
			return
		case <-tick.C:
		case <-m.wake:
		}
		m.Members.RestampAgain()
		for m.Context.Err() == nil && m.Rows.Failed() == nil && !m.Full() {
			if m.Take(m.Context) != nil {
				return
			}
			did := m.one(m.Context)
			m.Give()
			if !did {
				break
			}
		}
	}
}

// one does the most urgent piece of work. False: there is none.
func (m *Mover) one(ctx context.Context) bool {
	job, g := m.next()
	if g == nil {
		return false
	}
	began := time.Now()
	p := report.Progress{Task: job.task, Device: job.device()}
	job.work = m.Works.Begin(job.task, m.Space.LiveBytes([]*space.Group{g}))
	defer job.work.End()
	err := m.moveGroup(ctx, g, job, m.Space.Pace(m.Rate), &p)
	p.Seconds = time.Since(began).Seconds()
	m.note(p)
	if err != nil {
		m.stuck.add(g.ID(), time.Now().Add(m.Retry))
		if ctx.Err() == nil && err != space.ErrBusy {
			m.Log.Warn("blocks not moved for now", "task", job.task, "group", g.Num, "error", err)
		}
	}
	return true
}

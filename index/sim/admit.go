package sim

import (
	"time"

	"github.com/skepkv/skep/index"
)

// Prompt is a request of a trace with what admission may know of it.
type Prompt struct {
	At      time.Duration // since the trace began
	Blocks  Request
	Partial bool // the last block is a partial tail
}

// AdmitParams is one run of an admission policy on drives without a cap, so that what
// is missed is what was refused. A block has size 1.
type AdmitParams struct {
	SecondTouch bool  // plain: a block is written when it is put a second time, and DRAM holds nothing
	DRAM        int   // blocks that may wait in DRAM to be decided on
	PerDay      int64 // blocks that may be written a day; 0: no limit
	Ghosts      int   // refused keys remembered; 0: 1<<18
}

// AdmitResult is what a run came to, in blocks.
type AdmitResult struct {
	Referenced, Hit int
	Put, Written    int
	Refused         [index.Refusals]int
	RefusedHits     int // put again after they were refused: hits that refusing cost
}

// HitRatio is blocks found ÷ blocks referenced.
func (r AdmitResult) HitRatio() float64 { return float64(r.Hit) / float64(max(r.Referenced, 1)) }

// admitRun is a simulated DRAM tier in front of drives.
type admitRun struct {
	p       AdmitParams
	waiting *index.Waiting
	budget  *index.WearBudget
	ghosts  *index.Ghosts
	ids     map[index.Fingerprint]uint32
	stored  map[uint32]bool // on drives
	now     time.Time
	r       AdmitResult
}

// RunAdmission plays prompts in order: look up, use what was found, put the rest.
func RunAdmission(p AdmitParams, prompts []Prompt) (AdmitResult, error) {
	if p.Ghosts == 0 {
		p.Ghosts = 1 << 18
	}
	g, err := index.NewGhosts(p.Ghosts)
	if err != nil {
		return AdmitResult{}, err
	}
	start := time.Unix(0, 0)
	s := &admitRun{p: p, waiting: index.NewWaiting(), budget: index.NewWearBudget(p.PerDay, 1, start, 0), ghosts: g,
		ids: map[index.Fingerprint]uint32{}, stored: map[uint32]bool{}}
	for _, q := range prompts {
		s.now = start.Add(q.At)
		s.budget.Update(s.now, int64(s.r.Written))
		s.play(q)
	}
	return s.r, nil
}

func (s *admitRun) has(id uint32) bool { return s.stored[id] || s.waiting.Has(fingerprint(id)) }

func (s *admitRun) play(q Prompt) {
	hit := 0
	for hit < len(q.Blocks) && s.has(q.Blocks[hit]) {
		s.waiting.Use(fingerprint(q.Blocks[hit]))
		hit++
	}
	s.r.Referenced += len(q.Blocks)
	s.r.Hit += hit
	for i := hit; i < len(q.Blocks); i++ {
		id := q.Blocks[i]
		fp := fingerprint(id)
		if s.has(id) { // stored, and hidden: putting it again is a use
			s.waiting.Use(fp)
			continue
		}
		s.r.Put++
		again := s.ghosts.Take(fp)
		if again {
			s.r.RefusedHits++
		}
		if s.p.SecondTouch {
			if again {
				s.write(id)
			} else {
				s.refuse(fp, index.RefusedFirst)
			}
			continue
		}
		b := index.WaitingBlock{FP: fp, Bytes: 1, Partial: q.Partial && i == len(q.Blocks)-1, Used: again}
		if i > 0 {
			b.HasParent, b.Parent = true, fingerprint(q.Blocks[i-1])
			s.ids[b.Parent] = q.Blocks[i-1]
		}
		s.ids[fp] = id
		s.waiting.Add(b)
	}
	for s.budget.Level() > 0 {
		list := s.waiting.Proven(1, 0, nil)
		if len(list) == 0 {
			break
		}
		s.decide(list)
	}
	for s.waiting.Len() > s.p.DRAM {
		s.decide(s.waiting.Next(512, s.budget.Level() < 1, nil))
	}
}

func (s *admitRun) write(id uint32) {
	s.stored[id] = true
	s.r.Written++
}

func (s *admitRun) refuse(fp index.Fingerprint, why index.Refusal) {
	s.r.Refused[why]++
	s.ghosts.Add(fp)
}

func (s *admitRun) decide(list []index.WaitingBlock) {
	run := make([]index.Leaving, len(list))
	for i, b := range list {
		away := b.HasParent && !s.stored[s.ids[b.Parent]] && (i == 0 || list[i-1].FP != b.Parent)
		run[i] = index.Leaving{Bytes: b.Bytes, Used: b.Used, Partial: b.Partial, ParentAway: away}
	}
	for i, why := range index.Admit(run, s.budget.Level(), s.budget.Burst(), nil) {
		if why == index.Admitted {
			s.write(s.ids[list[i].FP])
		} else {
			s.refuse(list[i].FP, why)
		}
	}
	s.budget.Update(s.now, int64(s.r.Written))
}

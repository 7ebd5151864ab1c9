package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/skepkv/skep/index"
)

// Request is a prompt: the ids of its blocks, first to last. An id names a block and
// all before it, as prefix hashes do.
type Request []uint32

// Params is one run.
type Params struct {
	Policy string  // of the index
	Blocks int     // what exact LRU would be given
	Space  float64 // room for payload ÷ Blocks
	Groups int     // the room is cut into
	Cost   index.CostConfig
}

// Result is what a run came to.
type Result struct {
	Referenced, Hit int // blocks
	Put, Rewritten  int // blocks
	Cleaned         int // groups
}

// HitRatio is blocks found ÷ blocks referenced.
func (r Result) HitRatio() float64 { return float64(r.Hit) / float64(max(r.Referenced, 1)) }

// WriteAmplification is all blocks written ÷ blocks put.
func (r Result) WriteAmplification() float64 {
	return float64(r.Put+r.Rewritten) / float64(max(r.Put, 1))
}

// run is a simulated store. A block is one page.
type run struct {
	x      *index.Index
	groups [][]uint32 // ids in the order they were written
	free   []uint32
	open   [2]uint32 // for puts and for survivors; 0 is none
	room   int       // blocks a group holds
	now    time.Time
	result Result
}

const (
	forPuts      = 0
	forSurvivors = 1
)

var errNoGroup = errors.New("sim: cleaning gains no space")

// Run plays requests in order: look up, use what was found, put the rest. What was
// there but hidden counts as used and is not written again.
func Run(p Params, requests []Request) (Result, error) {
	total := int(p.Space * float64(p.Blocks))
	s := &run{room: total / p.Groups, now: time.Unix(0, 0), groups: make([][]uint32, p.Groups+1)}
	var err error
	s.x, err = index.New(index.Config{
		CapacityPages: int64(s.room * p.Groups), LogicalPages: int64(p.Blocks), Policy: p.Policy, Cost: p.Cost,
	})
	if err != nil {
		return Result{}, err
	}
	defer s.x.Close()
	for g := p.Groups; g > 0; g-- {
		s.free = append(s.free, uint32(g))
	}
	for _, r := range requests {
		if err := s.play(r); err != nil {
			return s.result, err
		}
	}
	if err := s.x.Check(); err != nil {
		return s.result, fmt.Errorf("after the run: %w", err)
	}
	return s.result, nil
}

// fingerprint spreads an id as a keyed hash would (splitmix64).
func fingerprint(id uint32) (fp index.Fingerprint) {
	z := uint64(id) + 0x9e3779b97f4a7c15
	var b [16]byte
	for i := range 2 {
		z += 0x9e3779b97f4a7c15
		y := (z ^ z>>30) * 0xbf58476d1ce4e5b9
		y = (y ^ y>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(b[8*i:], y^y>>31)
	}
	return index.Fingerprint(b[:])
}

func (s *run) play(r Request) error {
	depth, deepest := s.x.Lookup(len(r), func(i int) index.Fingerprint { return fingerprint(r[i]) })
	s.result.Referenced += len(r)
	s.result.Hit += depth
	s.x.TouchChain(deepest, depth)
	for i := depth; i < len(r); i++ {
		fp := fingerprint(r[i])
		if _, stored := s.x.Resolve(fp); stored {
			s.x.Touch(fp)
			continue
		}
		loc, err := s.append(r[i], forPuts)
		if err != nil {
			return err
		}
		e := index.Entry{FP: fp, Depth: uint32(i), Location: loc, Pages: 1}
		// Room was made for this block: its ancestors may have gone for it, which makes
		// it an orphan, as it would be in the store.
		if i > 0 {
			e.HasParent, e.Parent = true, fingerprint(r[i-1])
		}
		if _, _, err := s.x.Insert(e); err != nil {
			return err
		}
		s.result.Put++
		for {
			drop, ok := s.x.NextEvict()
			if !ok {
				break
			}
			if _, err := s.x.Evict(drop.FP, drop.Location); err != nil {
				return err
			}
		}
	}
	return nil
}

// append gives id a place in an open group, cleaning when groups run out.
func (s *run) append(id uint32, which int) (uint64, error) {
	g := s.open[which]
	if g != 0 && len(s.groups[g]) >= s.room {
		if err := s.x.SealGroup(g, int64(s.room), 0); err != nil {
			return 0, err
		}
		g = 0
	}
	if g == 0 {
		for tries := 0; which == forPuts && len(s.free) < 2; tries++ { // one is for survivors
			if tries > len(s.groups) {
				return 0, errNoGroup
			}
			if err := s.clean(); err != nil {
				return 0, err
			}
		}
		if len(s.free) == 0 {
			return 0, errNoGroup
		}
		g = s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.groups[g] = s.groups[g][:0]
	}
	s.open[which] = g
	s.groups[g] = append(s.groups[g], id)
	return location(g, len(s.groups[g])), nil
}

func location(group uint32, n int) uint64 { return uint64(group)<<32 | uint64(n) }

func (s *run) clean() error {
	victim, ok := s.x.PickVictim(nil)
	if !ok {
		return errNoGroup
	}
	g := victim.Group
	refs := make([]index.Ref, len(s.groups[g]))
	for i, id := range s.groups[g] {
		refs[i] = index.Ref{FP: fingerprint(id), Location: location(g, i+1)}
	}
	verdicts := s.x.Survivors(s.now, int64(s.room), refs, nil)
	for i, v := range verdicts {
		switch v {
		case index.Drop:
			if _, err := s.x.Evict(refs[i].FP, refs[i].Location); err != nil {
				return err
			}
		case index.Keep, index.Must:
			to, err := s.append(s.groups[g][i], forSurvivors)
			if err != nil {
				return err
			}
			if !s.x.Move(refs[i].FP, refs[i].Location, to) {
				return fmt.Errorf("sim: block %d moved by itself", s.groups[g][i])
			}
			s.result.Rewritten++
		}
	}
	s.x.FreeGroup(g)
	s.free = append(s.free, g)
	s.result.Cleaned++
	return nil
}

// ExactLRU is the hit ratio of an LRU of so many blocks with nothing lost to groups:
// a request's leading blocks that are stored are hits, then all its blocks are used
// first to last.
func ExactLRU(blocks int, requests []Request) float64 {
	type node struct{ prev, next uint32 }
	var top uint32
	for _, r := range requests {
		for _, id := range r {
			top = max(top, id+1)
		}
	}
	nodes := make([]node, top+1) // [top] is the ring's sentinel
	in := make([]bool, top)
	nodes[top] = node{top, top}
	pull := func(id uint32) {
		n := nodes[id]
		nodes[n.prev].next, nodes[n.next].prev = n.next, n.prev
	}
	stored, hit, referenced := 0, 0, 0
	for _, r := range requests {
		referenced += len(r)
		for _, id := range r {
			if !in[id] {
				break
			}
			hit++
		}
		for _, id := range r {
			if in[id] {
				pull(id)
			} else {
				in[id] = true
				stored++
			}
			first := nodes[top].next
			nodes[id] = node{top, first}
			nodes[first].prev, nodes[top].next = id, id
			if stored > blocks {
				last := nodes[top].prev
				pull(last)
				in[last] = false
				stored--
			}
		}
	}
	return float64(hit) / float64(max(referenced, 1))
}

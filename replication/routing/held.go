package routing

import "strings"

// holders is what engines hold.
type holders struct {
	of     map[string]*holding // by engine
	sent   uint64              // requests
	blocks int                 // of all engines, in both generations
}

// holding is what one engine was sent of late: in two generations, of which the older one is forgotten when the
// younger one is full. So between half of its cache and all of it is remembered.
type holding struct {
	young, old map[uint64]struct{}
	last       uint64 // request that was sent there
}

// leading is how many of a chain's first blocks an engine should have.
func (h *holders) leading(engine string, chain []uint64) int {
	e := h.of[engine]
	if e == nil {
		return 0
	}
	for i, k := range chain {
		if _, ok := e.young[k]; ok {
			continue
		}
		if _, ok := e.old[k]; !ok {
			return i
		}
	}
	return len(chain)
}

// note has an engine, whose cache has room for so many blocks, be sent a chain. Where there are too many engines, the
// one that forget names is forgotten.
func (h *holders) note(engine string, room int, chain []uint64) {
	h.sent++
	e := h.of[engine]
	if e == nil {
		if len(h.of) == MaxKnown {
			h.forget()
		}
		e = &holding{young: map[uint64]struct{}{}}
		h.of[engine] = e
	}
	e.last = h.sent
	half := max(1, min(room, MaxBlocks)/2)
	for _, k := range chain[:min(len(chain), half)] {
		if len(e.young) >= half {
			h.blocks -= len(e.old)
			e.young, e.old = map[uint64]struct{}{}, e.young
		}
		before := len(e.young)
		e.young[k] = struct{}{}
		h.blocks += len(e.young) - before
	}
	for h.blocks > MaxBlocks {
		h.shrink()
	}
}

// shrink has the engine of which most is remembered lose its older generation, or what it has.
func (h *holders) shrink() {
	var most *holding
	for _, e := range h.of {
		if n := len(e.young) + len(e.old); most == nil || n > len(most.young)+len(most.old) ||
			n == len(most.young)+len(most.old) && e.last < most.last {
			most = e
		}
	}
	if most.old == nil {
		most.young, most.old = map[uint64]struct{}{}, most.young
	}
	h.blocks -= len(most.old)
	most.old = nil
}

// forget forgets an engine of the owner that has most of them: the one that was sent nothing for longest.
func (h *holders) forget() {
	engines := map[string]int{}
	for name := range h.of {
		engines[ownerOf(name)]++
	}
	out := ""
	for name, e := range h.of {
		n, most := engines[ownerOf(name)], engines[ownerOf(out)]
		if out == "" || n > most || n == most && e.last < h.of[out].last {
			out = name
		}
	}
	h.blocks -= len(h.of[out].young) + len(h.of[out].old)
	delete(h.of, out)
}

// nameOf is what an engine of an owner is remembered by.
func nameOf(owner, engine string) string { return engine + "\x00" + owner }

func ownerOf(name string) string {
	return name[strings.LastIndexByte(name, 0)+1:]
}

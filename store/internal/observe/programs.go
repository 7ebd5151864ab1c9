package observe

import (
	"cmp"
	"github.com/skepkv/skep/store/internal/locks"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
)

// Programs counts what blocks that hints gave to a program brought. Bounded: programs
// beyond the limit are counted under no name, and blocks beyond it are forgotten, some
// other first.
type Programs struct {
	mu     locks.Mutex[locks.Programs]
	byName map[string]*skep.ProgramStats
	of     map[index.Fingerprint]*skep.ProgramStats
}

const (
	maxPrograms      = 1024
	maxProgramBlocks = 1 << 16
	// ProgramBytes is the memory they take at most.
	ProgramBytes = maxPrograms*(skep.MaxNameSize+128) + maxProgramBlocks*48
)

// Hinted notes that blocks are a program's.
func (p *Programs) Hinted(name string, fps []index.Fingerprint) {
	if name == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byName == nil {
		p.byName, p.of = map[string]*skep.ProgramStats{}, map[index.Fingerprint]*skep.ProgramStats{}
	}
	x := p.byName[name]
	if x == nil {
		if len(p.byName) >= maxPrograms {
			return
		}
		x = &skep.ProgramStats{Name: name}
		p.byName[name] = x
	}
	for _, fp := range fps {
		if old := p.of[fp]; old != nil {
			old.Blocks--
		} else if len(p.of) >= maxProgramBlocks {
			for other, its := range p.of {
				its.Blocks--
				delete(p.of, other)
				break
			}
		}
		p.of[fp] = x
		x.Blocks++
	}
}

// Restored notes that a block came.
func (p *Programs) Restored(fp index.Fingerprint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.of[fp]; x != nil {
		x.RestoredBlocks++
	}
}

// Snapshot lists the programs, who restored most first.
func (p *Programs) Snapshot() []skep.ProgramStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]skep.ProgramStats, 0, len(p.byName))
	for _, x := range p.byName {
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b skep.ProgramStats) int {
		return cmp.Or(cmp.Compare(b.RestoredBlocks, a.RestoredBlocks), cmp.Compare(a.Name, b.Name))
	})
	return out
}

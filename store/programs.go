package store

import (
	"cmp"
	"slices"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
)

// programs counts what blocks that hints gave to a program brought. Bounded: programs
// beyond the limit are counted under no name, and blocks beyond it are forgotten, some
// other first.
type programs struct {
	mu     sync.Mutex
	byName map[string]*skep.ProgramStats
	of     map[index.Fingerprint]*skep.ProgramStats
}

const (
	maxPrograms      = 1024
	maxProgramBlocks = 1 << 16
	programBytes     = maxPrograms*(skep.MaxNameSize+128) + maxProgramBlocks*48 + aheadBytes
)

// hinted notes that blocks are a program's.
func (p *programs) hinted(name string, fps []index.Fingerprint) {
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

// restored notes that a block came.
func (p *programs) restored(fp index.Fingerprint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.of[fp]; x != nil {
		x.RestoredBlocks++
	}
}

// snapshot lists the programs, who restored most first.
func (p *programs) snapshot() []skep.ProgramStats {
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

// shownTenants is how many tenants Stats lists: those that hold most.
const shownTenants = 64

// tenantStats lists who holds how much, most first.
func (s *Store) tenantStats() []skep.TenantStats {
	s.names.mu.RLock()
	names := slices.Clone(s.names.mu.tenantNames)
	s.names.mu.RUnlock()
	out := make([]skep.TenantStats, 0, len(names))
	for i, name := range names {
		bytes, quota := s.index.Usage(uint16(i))
		out = append(out, skep.TenantStats{Name: name, Bytes: bytes, QuotaBytes: quota})
	}
	slices.SortFunc(out, func(a, b skep.TenantStats) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(len(out), shownTenants)]
}

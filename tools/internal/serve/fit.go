package serve

import (
	"context"
	"fmt"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/memory"
)

const (
	leastIOBytes     = 64 << 20
	leastMemoryBytes = 56 << 20
)

// fit makes the default sizes smaller where limit, the memory the process may take, has no room for them.
// The index, the catalog and Go's heap need room, too.
func (c *Config) fit(limit int64) {
	c.Store.DRAMBytes = Size(memory.Within(int64(c.Store.DRAMBytes), limit, 8))
	c.Store.IOBytes = max(leastIOBytes, Size(memory.Within(int64(c.Store.IOBytes), limit, 4)))
	c.Limits.MemoryBytes = max(leastMemoryBytes, min(c.Limits.MemoryBytes, c.Store.IOBytes/4*3))
}

// tooLarge says that what was set does not fit into limit: the process would be killed without a word
// once it used that.
func (c *Config) tooLarge(limit int64) []error {
	if limit == 0 {
		return nil
	}
	most := Size(limit / 4 * 3)
	if c.Store.DRAMBytes <= most && c.Store.IOBytes <= most-c.Store.DRAMBytes {
		return nil
	}
	sum := fmt.Sprintf("%v and %v", c.Store.DRAMBytes, c.Store.IOBytes)
	return []error{problem("store.dram_bytes and store.io_bytes", sum,
		fmt.Sprintf("at most %v together, three quarters of the memory that the process's control group has", most))}
}

// sayBlocks tells that blocks as large as store.block_bytes says do not fit a store that was made for smaller ones.
func (s *server) sayBlocks(ctx context.Context, st *store.Store) error {
	m, err := st.StripeMap(ctx)
	if err != nil {
		return err
	}
	holds, fits := int64(0), false
	for _, g := range m.Groups {
		holds = max(holds, g.CapacityBytes)
		fits = fits || holdsBlock(g.CapacityBytes, int64(s.c.Store.BlockBytes), len(g.Devices))
	}
	if holds > 0 && !fits {
		s.log.Warn("store.block_bytes is for a new store, and this one was made for smaller blocks: "+
			"one of that size is declined as full. Make another store for them",
			"block_bytes", s.c.Store.BlockBytes, "a_group_holds", Size(holds))
	}
	return nil
}

// holdsBlock says whether a group of so many bytes over n devices has room for a block, which lies in stripes of all
// of them.
func holdsBlock(group, block int64, n int) bool {
	const page = layout.PageSize
	units, pages := layout.UnitFor(int((block+page-1)/page), n)
	return int64((units+n-1)/n*pages)*page <= group/int64(n)
}

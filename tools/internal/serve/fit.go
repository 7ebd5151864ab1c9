package serve

import (
	"fmt"

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

package routebench

import "time"

// engine is a model of one.
type engine struct {
	rate  float64 // tokens a second
	cache lru
	free  time.Duration // when it can begin with another request
	busy  time.Duration
}

// take runs a request that comes at a time, and says when it has its first token, and how many tokens were in the
// cache.
func (e *engine) take(now time.Duration, r *request) (first time.Duration, cached int) {
	hit := e.cache.use(r.chain)
	cached = min(hit*r.blockTokens, r.tokens)
	cost := time.Duration(float64(r.tokens-cached) / e.rate * float64(time.Second))
	e.free = max(e.free, now) + cost
	e.busy += cost
	return e.free, cached
}

// lru holds the blocks that were used last.
type lru struct {
	room  int
	at    map[uint64]int32 // in nodes
	nodes []node           // a ring: nodes[0] is between the oldest and the newest
}

type node struct {
	key        uint64
	prev, next int32
}

func newLRU(room int) lru {
	return lru{room: room, at: make(map[uint64]int32, room), nodes: make([]node, 1, room+1)}
}

// use says how many leading blocks of a chain are held, and holds all of it, or what there is room for: its head.
func (c *lru) use(chain []uint64) (hit int) {
	for hit < len(chain) {
		if _, ok := c.at[chain[hit]]; !ok {
			break
		}
		hit++
	}
	chain = chain[:min(len(chain), c.room)]
	for i := len(chain) - 1; i >= 0; i-- { // the end of a chain goes before its head
		c.touch(chain[i])
	}
	return hit
}

func (c *lru) touch(k uint64) {
	i, ok := c.at[k]
	switch {
	case ok:
		c.unlink(i)
	case len(c.nodes) <= c.room:
		i = int32(len(c.nodes))
		c.nodes = append(c.nodes, node{key: k})
		c.at[k] = i
	default:
		i = c.nodes[0].next
		c.unlink(i)
		delete(c.at, c.nodes[i].key)
		c.nodes[i].key = k
		c.at[k] = i
	}
	last := c.nodes[0].prev
	c.nodes[i].prev, c.nodes[i].next = last, 0
	c.nodes[last].next, c.nodes[0].prev = i, i
}

func (c *lru) unlink(i int32) {
	n := c.nodes[i]
	c.nodes[n.prev].next, c.nodes[n.next].prev = n.next, n.prev
}

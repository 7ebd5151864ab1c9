package serve

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/redistest"
)

// bookkeeper is a client with books of its own: for each of its keys, what may be had. Nobody else has its keys.
type bookkeeper struct {
	r       *rand.Rand
	name    string
	clients []*redistest.Client
	book    map[string]map[int]bool // versions that may be there; 0: none
	last    int
	wrong   []string
	answers map[string]int
}

func (k *bookkeeper) value(key string, version int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%s/%d|", key, version), []int{1, 40, 3000, 150_000}[version%4])
}

// step does one call at one of the nodes.
func (k *bookkeeper) step(t *testing.T) {
	key := fmt.Sprint(k.name, k.r.IntN(15))
	may := k.book[key]
	if may == nil {
		may = map[int]bool{0: true}
		k.book[key] = may
	}
	c := k.clients[k.r.IntN(len(k.clients))]
	switch op := k.r.IntN(10); {
	case op < 4:
		k.last++
		may[k.last] = true // also where it fails: nobody knows then
		if err := c.Set(t.Context(), key, k.value(key, k.last), time.Hour); err != nil {
			k.answers["SET refused"]++
			return
		}
		k.answers["SET"]++
		k.book[key] = map[int]bool{k.last: true}
	case op < 9:
		got, err := c.Get(t.Context(), key)
		switch {
		case errors.Is(err, redistest.ErrNil): // a cache may have none
			k.answers["GET nil"]++
		case err != nil:
			k.answers["GET failed"]++
		default:
			k.answers["GET"]++
			for version := range may {
				if version > 0 && bytes.Equal(got, k.value(key, version)) {
					return
				}
			}
			k.wrong = append(k.wrong, fmt.Sprintf("%s is %d bytes that begin %.20q: of none of %v", key, len(got), got, may))
		}
	default:
		may[0] = true
		if _, err := c.Int(t.Context(), "DEL", key); err != nil {
			k.answers["DEL refused"]++
			return
		}
		k.answers["DEL"]++
		k.book[key] = map[int]bool{0: true}
	}
}

// Nodes stop and start while clients with books of their own read, write and delete by way of all of them: what is
// read is what was set last or, where that was not answered, may have been; nothing that was replaced or deleted comes
// back.
func TestRedisStorm(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(drawn.Seed(t), 7))
	var ports []string
	for range 3 {
		ports = append(ports, freeport.Addr(t))
	}
	next := 0
	r := newRing(t, 3, func(c *Config) {
		c.RESP = ports[next]
		next++
	})
	var keepers []*bookkeeper
	for i := range 4 {
		k := &bookkeeper{r: rand.New(rand.NewPCG(rnd.Uint64(), 1)), name: fmt.Sprintf("client%d-", i), book: map[string]map[int]bool{}, answers: map[string]int{}}
		for n := range ports {
			o := redistest.Options{Addr: ports[n], Timeout: time.Minute}
			c := redistest.New(o)
			t.Cleanup(func() { c.Close() })
			k.clients = append(k.clients, c)
		}
		keepers = append(keepers, k)
	}
	all := func(steps int) {
		var wait sync.WaitGroup
		for _, k := range keepers {
			wait.Go(func() {
				for range steps {
					k.step(t)
				}
			})
		}
		wait.Wait()
	}
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		all(40)
		down := rnd.IntN(3)
		require.NoError(t, r.nodes[down].stop())
		all(60)
		r.nodes[down] = start(t, r.configs[down], Options{Again: r.again[down]})
	}
	all(100)
	sum := map[string]int{}
	for _, k := range keepers {
		require.Empty(t, k.wrong)
		for what, n := range k.answers {
			sum[what] += n
		}
	}
	t.Log(sum)
	for _, what := range []string{"SET", "SET refused", "GET", "GET nil", "DEL", "DEL refused"} {
		require.Positive(t, sum[what], what)
	}
}

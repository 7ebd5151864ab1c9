package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/serve"
)

// A client in cluster mode knows one node, learns the others, and goes on when one of them dies: what it gets is the value
// that was set, or none.
func TestGoRedisInClusterMode(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "map.yaml")
	text := "seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\nnodes:\n"
	var ports []string
	for i, name := range []string{"a", "b", "c"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ports = append(ports, l.Addr().String())
		require.NoError(t, l.Close())
		text += fmt.Sprintf("  - {id: %d, name: %s, addr: %q, resp: %q}\n", i+1, name, "unix:"+filepath.Join(dir, name), ports[i])
	}
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	var stops []func()
	for i, name := range []string{"a", "b", "c"} {
		c := local(t)
		c.Cluster, c.Node, c.Listen, c.HTTP, c.RESP, c.Unix = file, name, serve.None, serve.None, ports[i], filepath.Join(dir, name)
		_, stop := startStoppable(t, c)
		stops = append(stops, stop)
	}

	ctx := context.Background()
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: ports[:1], DialTimeout: time.Minute, ReadTimeout: time.Minute})
	defer c.Close()
	seen := map[string]bool{}
	var mu sync.Mutex
	require.NoError(t, c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		seen[m.Options().Addr] = true
		return m.Ping(ctx).Err()
	}))
	require.Len(t, seen, 3)
	const n = 90
	value := func(i int) []byte { return bytes.Repeat([]byte{byte(i), 7}, 1+i*500) }
	for i := range n {
		require.NoError(t, c.Set(ctx, fmt.Sprint("k", i), value(i), time.Hour).Err())
	}
	other := redis.NewClient(&redis.Options{Addr: ports[1], DialTimeout: time.Minute, ReadTimeout: time.Minute})
	defer other.Close()
	for i := range n {
		for _, from := range []redis.Cmdable{c, other} {
			got, err := from.Get(ctx, fmt.Sprint("k", i)).Bytes()
			require.NoError(t, err)
			require.True(t, bytes.Equal(value(i), got))
		}
	}
	values, err := other.MGet(ctx, "k1", "k2", "k3", "none").Result() // of three slots
	require.NoError(t, err)
	require.Equal(t, []any{string(value(1)), string(value(2)), string(value(3)), nil}, values)

	stops[2]()
	found := 0
	gone := func() bool { // it has learnt that the slots are the others'
		found = 0
		for i := range n {
			got, err := c.Get(ctx, fmt.Sprint("k", i)).Bytes()
			switch {
			case err == nil && !bytes.Equal(value(i), got):
				t.Errorf("k%d has another value", i)
			case err == nil:
				found++
			case !errors.Is(err, redis.Nil):
				return false
			}
		}
		return true
	}
	for until := time.Now().Add(2 * time.Minute); !gone(); {
		require.True(t, time.Now().Before(until), "errors for two minutes")
	}
	require.Greater(t, found, n/3)
	require.Less(t, found, n)
}

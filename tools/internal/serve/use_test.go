package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/idle"
	"github.com/skepkv/skep/wire/frames"
	wireserver "github.com/skepkv/skep/wire/server"
	"github.com/skepkv/skep/wire/watch"
)

// What clients have done counts, by whichever node they ask. What nodes do for repairs does not, nor does who watches.
func TestWhatIsUse(t *testing.T) {
	t.Parallel()
	const client, other = "vllm", nodeName + "b"
	for _, x := range []struct {
		call frames.Type
		by   string
		as   int64
	}{
		{frames.TypeLookup, client, idle.Call}, {frames.TypeLookup, other, idle.Call},
		{frames.TypeLookupRuns, other, idle.Call}, {frames.TypeRestore, client, idle.Call},
		{frames.TypeCostedRestore, other, idle.Call}, {frames.TypePut, client, idle.Call + 100},
		{frames.TypePutEach, client, idle.Call + 100}, {frames.TypePut, other, 0}, {frames.TypePutEach, other, 0},
		{frames.TypeWant, client, 0}, {frames.TypeStats, client, 0}, {frames.TypeAdmin, client, 0},
	} {
		var u use
		u.asked(&wireserver.Call{Type: x.call, Client: x.by, Bytes: 100})
		require.Equal(t, x.as, u.done.Load(), "%s by %s", x.call, x.by)
	}
	var u use
	u.told(watch.Call{Protocol: "resp", Bytes: 100})
	require.EqualValues(t, idle.Call+100, u.done.Load())
	u.told(watch.Call{Protocol: "wire", Bytes: 100}) // which was noted
	u.told(watch.Call{Protocol: "http", Name: "stats"})
	require.EqualValues(t, idle.Call+100, u.done.Load())
	u.told(watch.Call{Protocol: "http", Name: "route"})
	require.EqualValues(t, 2*idle.Call+100, u.done.Load())
}

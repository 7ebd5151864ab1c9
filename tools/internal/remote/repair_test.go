package remote_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/remote"
	"github.com/skepkv/skep/wire/auth"
	wireserver "github.com/skepkv/skep/wire/server"
)

// repairing has two nodes of a map of epoch 7, and gives the address of the first, which has a state. Each repair that
// a node is asked for ends at once. The first says of it what ended gives, by its number from 1 on.
func repairing(t *testing.T, state string, ended func(number int) string) (first string) {
	t.Helper()
	return repairingBy(t, state, endsAtOnce(ended))
}

// asked answers administrative calls.
type asked = func(context.Context, auth.Identity, string, json.RawMessage) (json.RawMessage, error)

// repairingBy is repairing, and the first node answers as it does.
func repairingBy(t *testing.T, state string, answers asked) (first string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	text := fmt.Sprintf("seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\nepoch: 7\nnodes:\n"+
		"  - {id: 1, name: a, addr: %q%s}\n  - {id: 2, name: b, addr: %q}\n",
		"unix:"+filepath.Join(dir, "a"), state, "unix:"+filepath.Join(dir, "b"))
	for id, name := range []string{"a", "b"} {
		says := answers
		if name == "b" {
			says = endsAtOnce(func(int) string { return `, "epoch": 7` })
		}
		srv, err := wireserver.New(memory(t), wireserver.Options{ClusterMap: []byte(text), Epoch: 7,
			NodeID: uint64(id + 1), Admin: says})
		require.NoError(t, err)
		l, err := net.Listen("unix", filepath.Join(dir, name))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- srv.Serve(ctx, l) }()
		t.Cleanup(func() {
			cancel()
			<-done
		})
	}
	return "unix://" + filepath.Join(dir, "a")
}

func endsAtOnce(says func(number int) string) asked {
	var mu sync.Mutex
	n := 0
	return func(_ context.Context, _ auth.Identity, _ string, in json.RawMessage) (json.RawMessage, error) {
		var ask struct{ Begin bool }
		if err := json.Unmarshal(in, &ask); err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		out := fmt.Sprintf(`{"next": %d, "last": {"number": %d%s}}`, n+1, n, says(n))
		if ask.Begin {
			n++
		}
		return json.RawMessage(out), nil
	}
}

func repaired(t *testing.T, first string) (code int, n remote.RepairedNode) {
	t.Helper()
	o := at(t, first, "cluster", "repair", "--json")
	var r remote.RepairResult
	require.NoError(t, json.Unmarshal([]byte(o.Stdout), &r), o.Stderr)
	require.Len(t, r.Nodes, 2, o.Stderr)
	return o.Code, r.Nodes[0]
}

// A node that the map has down, and that runs, sends nothing, as it is to: that is no fault.
func TestARepairOfANodeThatIsDownIsNoFault(t *testing.T) {
	t.Parallel()
	said := func(int) string { return `, "epoch": 0` }
	code, n := repaired(t, repairing(t, ", state: down", said))
	assert.Zero(t, code)
	assert.Empty(t, n.Error)
	code, n = repaired(t, repairing(t, "", said))
	assert.Equal(t, command.Faults, code)
	assert.Contains(t, n.Error, "its own map has it down")
}

// A node that is started again counts its repairs anew, and has forgotten that it was asked for one: it is asked again.
func TestARepairIsAskedForAgainOfANodeThatWasStartedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	begun := []string{}
	code, n := repaired(t, repairingBy(t, "", func(_ context.Context, _ auth.Identity, _ string, in json.RawMessage) (
		json.RawMessage, error,
	) {
		mu.Lock()
		defer mu.Unlock()
		begun = append(begun, string(in))
		switch len(begun) {
		case 1:
			return json.RawMessage(`{"next": 5, "last": {"number": 4, "epoch": 7}}`), nil
		case 2, 3: // it was started again: one question finds it so, the next asks it
			return json.RawMessage(`{"next": 1}`), nil
		}
		return json.RawMessage(`{"next": 2, "last": {"number": 1, "epoch": 7, "copied": 3}}`), nil
	}))
	assert.Zero(t, code, n.Error)
	assert.EqualValues(t, 3, n.Copied)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []string{`{"begin":true}`, `{"begin":false}`, `{"begin":true}`, `{"begin":false}`}, begun)
}

// By which map a node of an older version went is not known: the command says that, and asks it once.
func TestARepairOfAnOlderVersionIsUnknown(t *testing.T) {
	t.Parallel()
	code, n := repaired(t, repairing(t, "", func(n int) string { return fmt.Sprintf(`, "copied": %d`, n) }))
	assert.Equal(t, command.Faults, code)
	assert.Contains(t, n.Error, "its version is older")
	assert.EqualValues(t, 1, n.Copied)
}

// What a node sent by an older map counts, beside what it sent by the asked one's. What it lacks is as the last saw it.
func TestARepairAddsUpItsRounds(t *testing.T) {
	t.Parallel()
	code, n := repaired(t, repairing(t, "", func(n int) string {
		return fmt.Sprintf(`, "epoch": %d, "copied": 10, "bytes": 100, "blocks": 5, "declined": %d`, 4+n, 3-n)
	}))
	assert.Zero(t, code, n.Error)
	assert.EqualValues(t, 7, n.Epoch)
	assert.EqualValues(t, 30, n.Copied)
	assert.EqualValues(t, 300, n.Bytes)
	assert.EqualValues(t, 5, n.Blocks)
	assert.Zero(t, n.Declined)
}

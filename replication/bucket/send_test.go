package bucket

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// While a long pass sends, the node looks at the bucket as often as between passes: it finds what others send
// meanwhile.
func TestALongPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		o := options(b)
		o.Timeout = mostTimeout
		n, other := newNode(t, o, 0), newNode(t, o, 0)
		theirs := chain(1, 8)
		other.put(theirs)
		sent, found := 0, 0
		b.set(func() {
			b.before = func(call, name string) {
				if call != "put" || !strings.Contains(name, blocksDir) {
					return
				}
				last := false
				b.set(func() { sent++; last = sent == 7 })
				if last {
					found = n.find(theirs)
				}
				<-time.After(MaxEvery / 2)
			}
		})
		n.put(chain(2, 8*8))
		n.look()
		require.Equal(t, 8, found)
		require.Equal(t, 9, sent)
	})
}

// A look that takes as long as the time between looks keeps nothing from being sent.
func TestALongLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		o := options(b)
		o.Timeout = mostTimeout
		n := newNode(t, o, 0)
		n.put(chain(1, 8*8))
		b.set(func() {
			clear(b.calls)
			b.before = func(call, _ string) {
				if call == "list" {
					<-time.After(2 * MaxEvery)
				}
			}
		})
		n.look()
		require.Len(t, b.named(blocksDir), 8)
		b.set(func() { require.Equal(t, 1, b.calls["list"]) })
	})
}

// So it does while it waits for the rate of one object.
func TestALongWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		o := options(b)
		o.ObjectBytes = 2 * paceStep
		o.Budget.Rate = paceStep / 600 // a step in ten minutes, but for the first
		n, other := newNode(t, o, 0), newNode(t, o, 0)
		theirs := chain(1, 8)
		n.put(chain(2, 2*int(o.ObjectBytes)/blockSize))
		told := make(chan error, 1)
		n.kick <- told
		synctest.Wait()
		other.put(theirs)
		<-time.After(12 * time.Minute)
		require.Equal(t, 8, n.find(theirs))
		require.Empty(t, told, "it waits yet")
		require.NoError(t, <-told)
		require.Len(t, b.named(blocksDir), 3)
	})
}

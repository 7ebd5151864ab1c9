package serve

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// A server that has known a later time is started again with its machine's clock set back beyond a token's end: the token
// stays ended, and the log says so.
func TestATokenStaysEndedThoughTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	const short = "a-token-that-will-run-out"
	c := local(t)
	ends := time.Now().Add(time.Hour)
	way := credential(t, "a", short, "read")
	way.Expires = ends
	c.Credentials = []CredentialConfig{way}
	var said string
	opens := func(clock time.Time) error {
		r := start(t, c, Options{Wall: func() time.Time { return clock }})
		st, err := wire.Dial(t.Context(), wire.Options{Addr: r.at("wire"), Token: short, Strict: true})
		if err == nil {
			require.NoError(t, st.Close())
		}
		require.NoError(t, r.stop())
		said = r.log.String()
		return err
	}
	require.NoError(t, opens(ends.Add(-time.Minute)))
	require.Contains(t, said, "runs out soon")
	require.ErrorIs(t, opens(ends.Add(time.Minute)), skep.Denied)
	require.ErrorIs(t, opens(ends.Add(-time.Minute)), skep.Denied, "the clock was set back")
	require.Contains(t, said, "ran out at")
	require.NotContains(t, said, "runs out soon")
}

package serve

import (
	"context"

	"github.com/skepkv/skep/tools/internal/member"
)

// bindStore refuses to serve a store that is not the node's, where dir is that of a node which agrees on the map: the
// others may have deleted since what is in it.
func (s *server) bindStore(ctx context.Context) error {
	if id, _, err := s.c.member(); err != nil || id == nil {
		return err
	}
	st, err := s.st.Stats(ctx)
	if err != nil {
		return err
	}
	spaces, err := s.st.Namespaces(ctx)
	if err != nil {
		return err
	}
	id, failed := "", error(nil)
	for i := range st.Devices {
		if d := &st.Devices[i]; !ill(d) { // else another store's may be in its place
			if id, failed = member.StoreOf(d.Path); failed == nil {
				break
			}
		}
	}
	if failed != nil {
		return failed
	}
	return member.Bind(s.c.Dir, id, len(spaces) == 0)
}

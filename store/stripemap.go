package store

import "context"

// StripeMap takes a picture of what each segment of each device holds, for people.
func (s *Store) StripeMap(ctx context.Context) (*StripeMap, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	return s.space.Stripes(), nil
}

// Degraded counts the blocks that lack copies now.
func (s *Store) Degraded(ctx context.Context) (st DegradedStats, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return st, err
	}
	defer s.gate.Leave()
	return s.space.Degraded(ctx)
}

package sim

import "github.com/skepkv/skep/layout/twopointer"

// Stated is the truth in which everything takes what the scheduler believes: a step is a
// launch and the spans of its items, a channel moves what it is said to.
func Stated(c twopointer.Cost, ch twopointer.Channel) Truth {
	return Truth{
		Step:    func(_ float64, _ int, items []Item) float64 { return StepTime(c, items) },
		Rate:    func(float64, int) float64 { return ch.BytesPerSecond },
		Latency: ch.Latency,
	}
}

// StepTime is what a step takes by the engine's stated cost: the launch, shared, and
// what each item adds.
func StepTime(c twopointer.Cost, items []Item) float64 {
	launch, sum := 0.0, 0.0
	for _, it := range items {
		part := it.Layers
		launch = max(launch, part)
		sum += part * c.Span(it.From, it.To)
	}
	return launch*c.Fixed + sum
}

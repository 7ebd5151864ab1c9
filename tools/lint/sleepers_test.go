package lint

// What a sleep stands for.
const (
	works   = "the time that an engine computes: nothing is concluded from how long it was"
	fault   = "the time is the fault that is made: a peer, a network or a process that is slow, or the moment it is killed"
	looks   = "that nothing more happens is seen only by looking for a while, and a look that is too short lets the test pass"
	bubble  = "it runs in a bubble of synctest, by way of a table"
	bench   = "it measures, for a benchmark"
	promise = "what a cache may lose is said in time: what was acknowledged less than so long before"
	lives   = "life goes on between two events, for as long as it was told"
	again   = "the pause between two tries of what must succeed at some time"
)

// sleepers are functions of tests that go by the clock, and why they must: "FILE FUNCTION".
var sleepers = map[string]string{
	"wire/resp/lockstep_test.go TestLockstepSetsWait":                       "what it measures is called in bubbles of time only",
	"gpu/gputest/prompt.go moves":                                           works,
	"gpu/cuda/loan_test.go TestBorrowerKilled":                              looks,
	"store/failpoint_runs_test.go crash":                                    lives,
	"gpu/loan/child_test.go runBorrower":                                    works,
	"gpu/loan/lenders_test.go TestLenderKilled":                             fault,
	"gpu/loan/lenders_test.go TestLenderStopped":                            fault,
	"replication/consensus/world_test.go eventually":                        again,
	"store/full_drain_test.go TestRemoveFromAFullStore":                     looks,
	"store/kill_test.go killOne":                                            fault,
	"store/killstarved_test.go endChild":                                    fault,
	"store/memory/cache_test.go TestAWaitForIOIsServedWhenTheCacheCanYield": bubble,
	"store/schedule_test.go disturb":                                        fault,
	"store/schedule_test.go run":                                            again,
	"store/schedule_test.go wait":                                           again,
	"store/stages_test.go runStage":                                         works,
	"store/storetest/crew.go Eventually":                                    again,
	"store/storetest/random.go try":                                         again,
	"store/wrong_test.go TestADeviceFileIsRemoved":                          looks,
	"tools/internal/wired/greedy_test.go rounds":                            "how long calls take is told, and in the long form compared with how long they took before",
	"wire/resp/trickle_test.go TestLittleValuesThatTrickleIn":               fault,
	"store/twopointer_board_test.go TestAWrongWordHurtsNobodyElse":          works,
	"store/twopointer_board_test.go TestOverlapIsAChunkAtMost":              works,
	"store/twopointer_board_test.go compute":                                works,
	"store/twopointer_test.go from":                                         works,
	"tools/integration/console_test.go load":                                works,
	"tools/internal/serve/stages_test.go restoreStage":                      works,
	"tools/internal/ttft/board_test.go TestClaimsByAWordInSharedMemory":     works,
	"tools/internal/wired/wired_test.go quiet":                              looks,
	"tools/internal/cli/cluster_nodes_test.go TestThreeServersAgreeOnAMap":  "how long it takes until another one leads is told",
	"tools/libskep/prefill_test.go wander":                                  works,
	"tools/internal/books/book_test.go restarted":                           promise,
	"tools/internal/books/books_test.go TestBooks":                          lives,
	"tools/internal/apart/apart_test.go goOn":                               lives,
	"tools/internal/apart/apart_test.go pause":                              fault,
	"tools/internal/apart/clock_test.go serveByClock":                       again,
	"tools/internal/apart/client_test.go check":                             again,
	"tools/internal/apart/client_test.go clear":                             again,
	"tools/internal/apart/client_test.go play":                              lives,
	"tools/internal/apart/killed_test.go lose":                              bench,
	"tools/internal/apart/killed_test.go load":                              bench,
	"tools/internal/apart/killed_test.go part":                              bench,
	"tools/internal/apart/links_test.go measure":                            bench,
	"tools/internal/apart/node_test.go eventually":                          again,
	"tools/internal/books/books_test.go beside":                             fault,
	"tools/internal/books/client_test.go pass":                              again,
	"tools/internal/books/disk_test.go fill":                                fault,
	"tools/internal/books/server_test.go runServer":                         again,
	"wire/fault_test.go TestSlowLorisIsClosed":                              fault,
	"wire/hostile/books.go call":                                            "how long honest calls take is what is compared, with how long they took before",
	"wire/hostile/books.go warm":                                            again,
	"wire/hostile/oracle.go eventually":                                     again,
	"wire/hostile/player_files_linux.go wait":                               again,
	"wire/leak_test.go settled":                                             looks,
	"wire/pace_test.go TestReadersBelowTheLeastRate":                        bubble,
	"wire/proxy_test.go copy":                                               fault,
	"wire/resp/guard_test.go TestSlowPeersAreEndedAndHoldUpNobody":          fault,
	"wire/resp/stranger_test.go TestStrangersHaveTenSeconds":                bubble,
	"wire/timing_test.go compare":                                           bench,
}

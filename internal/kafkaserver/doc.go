// Package kafkaserver runs Kafka on loopback for tests, benchmarks and the demo: Broker is the real one, a child
// process, and Fake is one inside this process.
//
// Broker needs Java, and Maven once: its jars come from there into the user's cache (scripts/kafka-fetch). It is
// one node, broker and controller, with settings for a short life: internal topics of few partitions, topics made
// only on request, a session timeout of 1.5 s so that a restart after kill -9 takes seconds.
//
// A test that needs the behaviour of Kafka itself takes Broker. One that needs a broker that misbehaves in a
// chosen way, or a thousand restarts, takes Fake.
//
// # Non-obvious
//
//   - Start and Restart wait until every partition has a leader. Coordinators may still be loading: a client's
//     first InitProducerId or group request can be answered "load in progress".
//   - A killed broker waits at its next start for its own registration to expire: broker.session.timeout.ms.
//   - The broker is killed when this process dies; on Linux however it dies, elsewhere not by SIGKILL.
package kafkaserver

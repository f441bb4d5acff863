// Package testenv gives tests real servers: PostgreSQL and Kafka, shared by a test process or a test's own.
//
// A package that uses it says so in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
//
// Main ends the shared servers. They start with their first use, so that a run which needs none is quick, and
// die with the process if it never comes to the end of Main.
//
// The environment decides what runs:
//
//	RELAY_TEST_POSTGRES_URL    use this server, a superuser's URL with wal_level=logical; nothing is started
//	RELAY_TEST_POSTGRES_MAJOR  major version of the shared server, 14 to 18; else a local installation, else 18
//	RELAY_TEST_KAFKA_BROKERS   use these brokers, comma-separated; nothing is started
//	RELAY_TEST_REQUIRE=1       what a machine lacks fails tests instead of skipping or weakening them
//
// EachMajor runs a test on every supported version of PostgreSQL, for what differs between them.
//
// Tests share servers, never names: NewDatabase and NewTopic make fresh ones and remove them. A test that
// stops, kills or reconfigures its server takes one of its own from Dedicated or DedicatedKafka.
package testenv

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium as its users would run it without Kafka Connect: the embedded engine with the outbox event router,
 * and a producer of Kafka's own behind it. A batch counts as processed once every record of it is acknowledged,
 * and not before, so that like the relay it loses nothing.
 *
 * <p>Arguments: brokers, PostgreSQL's port, database, slot, publication, topic, file for the offsets.
 */
public final class Relay {
  public static void main(String[] args) throws Exception {
    KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
        producerProperties(args[0]), new ByteArraySerializer(), new ByteArraySerializer());
    DebeziumEngine<RecordChangeEvent<SourceRecord>> engine =
        DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
            .using(engineProperties(args[1], args[2], args[3], args[4], args[5], args[6]))
            .using((success, message, error) -> {
              if (!success) {
                System.err.println("engine ended: " + message);
                if (error != null) {
                  error.printStackTrace();
                }
                Runtime.getRuntime().halt(1);
              }
            })
            .notifying((records, committer) -> publish(producer, records, committer))
            .build();
    Thread main = Thread.currentThread();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      try {
        engine.close();
        main.join();
      } catch (Exception e) {
        System.err.println("close engine: " + e);
      }
    }));
    engine.run();
    producer.close();
  }

  private static void publish(
      KafkaProducer<byte[], byte[]> producer,
      List<RecordChangeEvent<SourceRecord>> records,
      DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer)
      throws InterruptedException {
    List<Future<RecordMetadata>> sent = new ArrayList<>(records.size());
    for (RecordChangeEvent<SourceRecord> event : records) {
      SourceRecord record = event.record();
      if (record.key() == null && record.value() == null) {
        continue; // a heartbeat or a tombstone of the engine, not an event
      }
      Headers headers = new RecordHeaders();
      for (Header header : record.headers()) {
        headers.add(header.key(), bytes(header.value()));
      }
      sent.add(producer.send(
          new ProducerRecord<>(record.topic(), null, bytes(record.key()), bytes(record.value()), headers)));
    }
    producer.flush();
    for (Future<RecordMetadata> acknowledged : sent) {
      try {
        acknowledged.get();
      } catch (ExecutionException e) {
        throw new IllegalStateException(e.getCause());
      }
    }
    for (RecordChangeEvent<SourceRecord> event : records) {
      committer.markProcessed(event);
    }
    committer.markBatchFinished();
  }

  private static byte[] bytes(Object value) {
    return value == null ? null : value.toString().getBytes(StandardCharsets.UTF_8);
  }

  private static Properties producerProperties(String brokers) {
    Properties p = new Properties();
    p.put("bootstrap.servers", brokers);
    p.put("acks", "all");
    p.put("enable.idempotence", "true");
    p.put("linger.ms", "5");
    p.put("batch.size", "262144");
    p.put("buffer.memory", "67108864");
    p.put("compression.type", "none");
    return p;
  }

  private static Properties engineProperties(
      String port, String database, String slot, String publication, String topic, String offsets) {
    Properties p = new Properties();
    p.put("name", "bench");
    p.put("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
    p.put("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
    p.put("offset.storage.file.filename", offsets);
    p.put("offset.flush.interval.ms", "1000");
    p.put("database.hostname", "127.0.0.1");
    p.put("database.port", port);
    p.put("database.user", "postgres");
    p.put("database.password", "unused");
    p.put("database.dbname", database);
    p.put("topic.prefix", "bench");
    p.put("plugin.name", "pgoutput");
    p.put("slot.name", slot);
    p.put("publication.name", publication);
    p.put("publication.autocreate.mode", "disabled");
    p.put("table.include.list", "outbox.events");
    p.put("snapshot.mode", "no_data");
    p.put("tombstones.on.delete", "false");
    p.put("max.batch.size", "8192");
    p.put("max.queue.size", "32768");
    p.put("poll.interval.ms", "5");
    p.put("status.update.interval.ms", "1000");
    p.put("extended.headers.enabled", "false");
    p.put("record.processing.threads", "2");
    p.put("record.processing.order", "ORDERED");
    p.put("transforms", "outbox");
    p.put("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter");
    p.put("transforms.outbox.table.field.event.id", "id");
    p.put("transforms.outbox.table.field.event.key", "aggregate_id");
    p.put("transforms.outbox.table.field.event.type", "event_type");
    p.put("transforms.outbox.table.field.event.payload", "payload");
    p.put("transforms.outbox.table.fields.additional.placement", "event_type:header:event_type");
    p.put("transforms.outbox.route.by.field", "aggregate_type");
    p.put("transforms.outbox.route.topic.replacement", topic);
    return p;
  }

  private Relay() {}
}
